"""The reason why a program does not end: the loop of a learner's file that a rank is in, and its condition."""

import ast
from collections.abc import Iterator, Sequence

from zerosim.parts.loading import read_python
from zerosim.worlds.running import CodePlace

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
