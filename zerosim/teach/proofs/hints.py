"""The causes of exceptions in a learner's function, with fixes, and of loops that do not end.

Python and NumPy say which operation failed. The hints here say what that means in code of collectives and stages.
A loop is explained by its condition and the values of its variables.
"""

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import Any

from zerosim.parts.loading import read_python
from zerosim.payloads.terms import LIKE
from zerosim.teach.proofs.case import Observation
from zerosim.worlds.local import StillRunning
from zerosim.worlds.running import CodePlace, places_of

TABLE: Mapping[str, Any] = tomllib.loads(
    resources.files("zerosim.teach.proofs").joinpath("hints.toml").read_text("utf-8"))
CUT: str = TABLE["cause"]["cut"]
HINTS = (
    (r"(Cannot cast ufunc|cast.*from dtype\('O'\))", LIKE),
    *((each["pattern"], each.get("says", "") + TABLE["cause"].get(each.get("cause"), "")) for each in TABLE["hint"]),
)
"""Patterns of exceptions' messages, and the cause of each."""
TOO_MUCH = ("it needs more than the 4 GB that a function may use here: vectors have a few dozen elements, so look for "
            "a list or an array that grows in a loop, or for a wrong length")
UNCERTAIN = tuple(TABLE["cause"][name] for name in ("cut", "around", "whole"))
"""The hints that are often right, and not always."""


def hint(error: BaseException) -> str | None:
    """The cause of an exception, in words; None if its message says all that is known.

    >>> hint(TypeError("Observed.send() takes 2 positional arguments but 3 were given"))[:34]
    'only the sent array is positional:'
    """
    said = f"{error}"
    if isinstance(error, MemoryError):
        return TOO_MUCH
    found = next((words for pattern, words in HINTS if re.search(pattern, said)), None)
    return Observation(found) if found in UNCERTAIN else found


def line_in(error: BaseException, file: str) -> int | None:
    """The last line of `file` in the traceback of an exception, or in the stack of a rank that still runs."""
    lines = [place.line for place in places_in(error) if place.file == file]
    return lines[-1] if lines else None


def places_in(error: BaseException) -> Sequence[CodePlace]:
    """The traceback of an exception, or the stack of a rank that still runs, the innermost call last."""
    return error.places if isinstance(error, StillRunning) else places_of(error)


def raised(error: BaseException, file: str) -> str:
    """An exception in one line: its message, the line of a learner's file, and the rank."""
    line = line_in(error, file)
    where = f"in line {line}" if line else ""
    if isinstance(error, NotImplementedError):
        return f"not written yet: NotImplementedError {where}".rstrip()
    said = re.sub(r"\b(?:Observed|\w*Communicator)\.(exchange|send|recv)\(", r"comm.\1(", f"{error}").rstrip()
    named = "" if type(error).__module__.startswith("zerosim.") else type(error).__name__
    if isinstance(error, AssertionError) and not said:
        said = "an assertion does not hold"
    what = ": ".join(filter(None, [named, said]))
    return " ".join([", ".join(filter(None, [what, where])), *getattr(error, "__notes__", [])])


Loop = ast.While | ast.For


def why_it_never_ends(places: Sequence[CodePlace], file: str) -> str | None:
    """The reason in words, from a rank's call stack, the innermost call last; None if it is in no loop of `file`."""
    found = [(loop, place) for place in places if place.file == file for loop in loops_around(file, place.line)]
    endless = [(loop, place) for loop, place in found if isinstance(loop, ast.While)] or found
    if not endless:
        return None
    loop, place = endless[-1]
    told = f"the loop of line {loop.lineno}, {written(loop)}, does not end"
    return f"{told}: {asked_by(loop, place)}" if isinstance(loop, ast.While) else told


def while_that_never_ends(places: Sequence[CodePlace], file: str) -> str | None:
    """The reason why a `while` loop never ends; None if the rank is in none."""
    return why_it_never_ends([place for place in places if any(
        isinstance(loop, ast.While) for loop in loops_around(file, place.line))], file)


def loops_around(file: str, line: int) -> Iterator[Loop]:
    """The loops of a file that contain a line, the innermost last."""
    try:
        tree = ast.parse(read_python(file))
    except (OSError, SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, Loop) and node.lineno <= line <= (node.end_lineno or 0):
            yield node


def written(loop: Loop) -> str:
    """The first line of a loop.

    >>> written(ast.parse("while  step<2 :\\n    pass").body[0])
    'while step < 2'
    """
    if isinstance(loop, ast.While):
        return f"while {ast.unparse(loop.test)}"
    return f"for {ast.unparse(loop.target)} in {ast.unparse(loop.iter)}"


def asked_by(loop: ast.While, place: CodePlace) -> str:
    """The variables of its condition with their present values, and the statements of the loop that change them."""
    names = names_in(loop.test)
    if not names:
        return "only break or return can end it, and neither is reached"
    now = " and ".join(f"{name} is {place.numbers[name]}" for name in names if name in place.numbers)
    changed = [name for name in names if may_change(name, loop, place)]
    if not changed:
        return f"{now}, and nothing within it changes {' or '.join(names)}".removeprefix(", and ")
    lines = " and ".join(f"line {node.lineno}, {ast.unparse(node)}," for node in assignments(loop, changed))
    done = lines or f"the code that uses {' and '.join(changed)}"
    return f"{now}: does {done} ever make this false?".removeprefix(": ")


def assignments(loop: ast.While, names: Sequence[str]) -> list[ast.Assign | ast.AugAssign]:
    """The assignments in a loop to one of these variables, in their order."""
    found = [node for part in loop.body for node in ast.walk(part) if isinstance(node, ast.Assign | ast.AugAssign)]
    targets = [(node, node.targets if isinstance(node, ast.Assign) else [node.target]) for node in found]
    return sorted((node for node, assigned in targets for each in assigned
                   if isinstance(each, ast.Name) and each.id in names), key=lambda node: node.lineno)


def may_change(name: str, loop: ast.While, place: CodePlace) -> bool:
    """Whether a statement in the loop assigns to a variable or, if it is no number, uses it at all."""
    uses = [node for part in loop.body for node in ast.walk(part) if isinstance(node, ast.Name) and node.id == name]
    return any(not isinstance(node.ctx, ast.Load) or name not in place.numbers for node in uses)


def names_in(test: ast.expr) -> list[str]:
    """The variables of a condition, in their order in it, except functions and the communicator.

    >>> names_in(ast.parse("distance < min(comm.size, step)").body[0].value)
    ['distance', 'step']
    """
    functions = [node.func for node in ast.walk(test) if isinstance(node, ast.Call)]
    found = [node for node in ast.walk(test) if isinstance(node, ast.Name) and node not in functions]
    ordered = sorted(found, key=lambda node: (node.lineno, node.col_offset))
    return list(dict.fromkeys(node.id for node in ordered if node.id != "comm"))
