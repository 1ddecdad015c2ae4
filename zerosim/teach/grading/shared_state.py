"""State that a learner's program shares between ranks or calls, found by a run that shares nothing."""

import ast
import re
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

from zerosim.parts.loading import read_python
from zerosim.teach.grading.exercises import ClaimsOf


def with_shared_state(
    complaint: str, function: Callable[..., Any], claims: ClaimsOf, failed: int, file: str
) -> str:
    """The complaint, with another cause if the error is gone when ranks and calls share no state of the module.

    An error without a known cause need only be another then. All claims up to the failed one are checked again, since
    later ones judge the runs of earlier ones.
    """
    name = getattr(function, "__name__", "")
    try:
        source = read_python(file).decode()
        named = [*shared_state(source)] if f"def {name}(" in source else []
    except (OSError, UnicodeDecodeError, SyntaxError, ValueError, RecursionError):
        return complaint
    if not named or "MemoryError" in complaint:
        return complaint
    asked = [claim for claim in claims(afresh(source, file, name, function))[: failed + 1]
             if not (claim.law or claim.needs)]
    try:
        left = next(filter(None, (claim.complaint() for claim in asked)), None)
    except Exception:
        return complaint
    said = complaint.split("\n")[1]
    if left and ("\nwhy: " in complaint or re.sub(r"\d+", "", left.split("\n")[0]) == re.sub(r"\d+", "", said)):
        return complaint
    lines = [each for each in complaint.split("\n") if not each.startswith(("why: ", "seen: "))]
    last = [lines.pop()] if lines[-1].startswith("see: ") else []
    why = (f"why: {' and '.join(named)} is shared by all ranks and all calls; create it within the call. With a "
           f"separate module for each call the error is {'another' if left else 'gone'}")
    return "\n".join([*lines, why, *last])


def afresh(source: str, file: str, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which executes its module again for each rank and each call."""
    code = compile(source, file, "exec")

    @wraps(function)
    def called(*given: Any, **named: Any) -> Any:
        module: dict[str, Any] = {"__name__": "afresh", "__file__": file}
        exec(code, module)
        return module[name](*given, **named)

    return called


def shared_state(source: str) -> Iterator[str]:
    """The mutable state of the module and of its functions, by name and line.

    >>> list(shared_state("CACHE = {}\\ndef f(x, seen=[]):\\n    CACHE[x] = seen"))
    ['`CACHE` of line 1', 'the default of `seen` in line 2']
    """
    tree = ast.parse(source)
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
