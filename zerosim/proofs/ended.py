"""How a user's function ended early: its exception in one line, and the loop in which it still runs."""

import ast
from collections.abc import Sequence
from pathlib import Path

from zerosim.core.errors import Runaway, did_you_mean
from zerosim.core.parts.loading import meant
from zerosim.worlds.call_stack import CodePlace, places_of
from zerosim.worlds.local import StillRunning


def raised(error: BaseException, file: str) -> str:
    """An exception in one line: its message, the last line of `file` in its traceback, and the rank."""
    lines = [frame.line for frame in places_in(error) if frame.file == file]
    named = "" if type(error).__module__.startswith("zerosim.") else type(error).__name__
    if isinstance(error, NotImplementedError):
        named = "not written yet: NotImplementedError"
    said = str(error).rstrip().replace("'Observed' object", "comm")
    what = ": ".join(filter(None, [named, said])) + meant_attribute(error)
    where = f"in line {lines[-1]}" if lines else ""
    return " ".join([", ".join(filter(None, [what, where])), *getattr(error, "__notes__", [])])


def meant_attribute(error: BaseException) -> str:
    """The attribute that was meant, also one of an attribute: `state.weights` for `weights`; empty if none is near."""
    if not isinstance(error, AttributeError) or error.obj is None:
        return ""
    own = [name for name in dir(error.obj) if not name.startswith("_")]
    inner = [f"{name}.{field}" for name in ("state", "tape", "model") if name in own
             for field in dir(getattr(error.obj, name)) if not field.startswith("_")]
    name = error.name or ""
    if (known := MPI_NAMES.get(name.lower())) in own:
        return f"; did you mean {known!r}?"
    return did_you_mean(name, own, alike=0.75) or meant(name, inner)


MPI_NAMES = {"get_rank": "rank", "get_size": "size", "sendrecv": "exchange", "isend": "send", "irecv": "recv",
             "all_reduce": "reduce_scatter", "allreduce": "reduce_scatter", "allgather": "gather"}
"""Names of MPI and PyTorch, and the attributes of a communicator that stand for them here."""


def in_file(error: BaseException, file: str) -> bool:
    """Whether an exception was raised in, or below, the code of a file."""
    return any(frame.file == file for frame in places_in(error))


def places_in(error: BaseException) -> Sequence[CodePlace]:
    """The traceback of an exception, or the stack of a rank that still runs, the innermost call last."""
    return error.places if isinstance(error, StillRunning) else places_of(error)


def endless_loop(error: BaseException, file: str) -> str | None:
    """The `while` loop of `file` in which a run did not end, and the values of its variables; None if it is in none."""
    if not isinstance(error, StillRunning | Runaway):
        return None
    looping = [(loop, frame) for frame in places_in(error) if frame.file == file for loop in loops(file, frame.line)]
    if not looping:
        return None
    loop, frame = looping[-1]
    names = [node.id for node in ast.walk(loop.test) if isinstance(node, ast.Name)]
    now = ", ".join(f"{name} is {frame.numbers[name]}" for name in dict.fromkeys(names) if name in frame.numbers)
    return f"the loop of line {loop.lineno}, while {ast.unparse(loop.test)}, does not end{f': {now}' if now else ''}"


def loops(file: str, line: int) -> list[ast.While]:
    """The `while` loops of a file around a line, the innermost last."""
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return []
    return [node for node in ast.walk(tree)
            if isinstance(node, ast.While) and node.lineno <= line <= (node.end_lineno or 0)]
