"""What of zerosim itself a learner's program uses, read in its text by one that does not run it.

What everybody needs is not told: who is where on the ring, and how a vector is cut. Of ways around an import that is
written down it is told that there is one.
"""

import ast
from collections.abc import Iterator

FREE = ("zerosim.comm", "zerosim.sharding", "zerosim.errors")
"""What every solution may use."""
AROUND = ("__import__", "eval", "exec", "compile", "globals", "vars", "setattr", "delattr", "import_module",
          "__class__", "__globals__", "__dict__", "__subclasses__", "modules", "_getframe", "settrace",
          "setprofile", "ctypes", "gc", "inspect", "importlib", "ast")
"""Names by which a program comes by what it does not import by name, or changes what is not its own."""


def borrowed(source: str) -> list[str]:
    """What it uses, each with its line, in the order of the text; nothing of a text that is not Python.

    >>> borrowed("from zerosim.comm import left\\nfrom zerosim.collectives import ring\\nring.all_gather = 1")
    ['zerosim.collectives.ring in line 2', 'writes to ring.all_gather in line 3']
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    return list(dict.fromkeys(found(tree)))


def found(tree: ast.Module) -> Iterator[str]:
    own: set[str] = set()
    for node in sorted((node for node in ast.walk(tree) if hasattr(node, "lineno")), key=lambda node: node.lineno):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if is_own(alias.name) and not alias.name.startswith(FREE):
                    own.add(alias.asname or alias.name.partition(".")[0])
                    yield f"{alias.name} in line {node.lineno}"
        elif isinstance(node, ast.ImportFrom) and is_own(node.module or ""):
            for alias in node.names:
                own.add(alias.asname or alias.name)
                name = f"{node.module}.{alias.name}"
                if not name.startswith(FREE):
                    yield f"{name} in line {node.lineno}"
        elif isinstance(node, ast.Name | ast.Attribute):
            name = node.id if isinstance(node, ast.Name) else node.attr
            if name in AROUND:
                yield f"{name} in line {node.lineno}"
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and root(node) in own:
                yield f"writes to {ast.unparse(node)} in line {node.lineno}"


def is_own(module: str) -> bool:
    return module.partition(".")[0] == "zerosim"


def root(node: ast.expr) -> str:
    """The name that an expression begins with.

    >>> root(ast.parse("a.b.c", mode="eval").body)
    'a'
    """
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
