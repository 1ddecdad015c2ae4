"""The parts of zerosim that a learner's program uses, found in its source without running it.

The names in `FREE`, which every solution needs, are not reported. Ways around a plain import are reported as such.
"""

import ast
from collections.abc import Iterator

FREE = ("zerosim.comm", "zerosim.sharding", "zerosim.errors")
"""Modules that every solution may use."""
AROUND = ("__import__", "eval", "exec", "compile", "globals", "vars", "setattr", "delattr", "import_module",
          "__class__", "__globals__", "__dict__", "__subclasses__", "modules", "_getframe", "settrace",
          "setprofile", "ctypes", "gc", "inspect", "importlib", "ast")
"""Names by which a program obtains what it does not import, or changes what belongs to others."""


def borrowed(source: str) -> list[str]:
    """The uses, each with its line, in the order of the source; empty for source that is not Python.

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
    """The name with which an expression begins.

    >>> root(ast.parse("a.b.c", mode="eval").body)
    'a'
    """
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
