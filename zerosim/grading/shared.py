"""State that a learner's program shares between ranks or calls, found by a run that shares nothing."""

import ast
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any


def afresh(source: str, file: str, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which executes its module again for each rank and each call."""
    code = compile(source, file, "exec")

    @wraps(function)
    def called(*given: Any, **named: Any) -> Any:
        module: dict[str, Any] = {"__name__": "afresh", "__file__": file}
        exec(code, module)
        return module[name](*given, **named)

    return called


def what_is_shared(source: str) -> str:
    """The mutable state of the module or of a function, by name and line.

    >>> what_is_shared("CACHE = {}\\ndef f(x, seen=[]):\\n    CACHE[x] = seen")
    '`CACHE` of line 1 and the default of `seen` in line 2'
    """
    named = list(shared(ast.parse(source)))
    return " and ".join(named) or "something of the module"


def shared(tree: ast.Module) -> Iterator[str]:
    used = {node.id for each in tree.body if isinstance(each, ast.FunctionDef | ast.ClassDef)
            for node in ast.walk(each) if isinstance(node, ast.Name)}
    for each in tree.body:
        if isinstance(each, ast.Assign | ast.AnnAssign) and not isinstance(each.value, ast.Constant | ast.Lambda):
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            for target in targets:
                if isinstance(target, ast.Name) and target.id in used:
                    yield f"`{target.id}` of line {each.lineno}"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            defaults = zip(node.args.args[::-1], node.args.defaults[::-1], strict=False)
            for argument, default in [*defaults][::-1]:
                if isinstance(default, ast.List | ast.Dict | ast.Set | ast.Call):
                    yield f"the default of `{argument.arg}` in line {argument.lineno}"
        if isinstance(node, ast.Global | ast.Nonlocal):
            yield (f"`{', '.join(node.names)}`, {'global' if isinstance(node, ast.Global) else 'nonlocal'} in line "
                   f"{node.lineno}")
