"""Mends: the edit of a learner's program with which everything holds, found by trying.

Edits are tried in processes of their own, since a changed program may never end. What is offered as a mend has been
tried on all numbers of ranks, and nothing else is.
"""

import ast
import os
import select
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from zerosim.grading.edits import edits
from zerosim.grading.scope import Edit

STUCK_SECONDS, JUDGED_SECONDS = 0.5, 5.0
STARTED_SECONDS = 2.0
"""For a glance at one edit; and for all that is asked of one that is promising."""

Quickly = Callable[[Callable[..., Any]], bool]
"""Whether nothing wrong is seen of a function at a glance."""
Verdict = Callable[[Callable[..., Any]], str]
"""The verdict on a function: `ALL` where everything holds, `SOME` where what was wrong does, else `NOTHING`."""
ALL, SOME, NOTHING, PROMISING = "+", "~", "-", "."


def mend(
    source: str, name: str, others: Sequence[str], quickly: Quickly, verdict: Verdict, budget_seconds: float
) -> tuple[str, bool] | None:
    """An edit of `source` with which everything holds of the function `name`, in words, and whether it does.

    Where none is found it is one with which at least what was wrong does.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None
    tried = list(edits(tree, name, others))
    found = tried_out(tree, name, tried, quickly, verdict, budget_seconds)
    for wanted in (ALL, SOME):
        if wanted in found.values():
            edit = next(tried[number] for number, said in found.items() if said == wanted)
            return f"in line {edit.line}, {edit.says}", wanted == ALL
    return None


def tried_out(
    tree: ast.Module, name: str, tried: Sequence[Edit], quickly: Quickly, verdict: Verdict, budget_seconds: float
) -> dict[int, str]:
    """What came of each edit, by its number, up to the first with which everything holds, in the time that there is."""
    deadline, found = time.monotonic() + budget_seconds, dict[int, str]()
    while len(found) < len(tried) and time.monotonic() < deadline and ALL not in found.values():
        for said in progress(tree, name, tried[len(found) :], quickly, verdict, deadline):
            found[len(found)] = said
    return found


def progress(
    tree: ast.Module, name: str, tried: Sequence[Edit], quickly: Quickly, verdict: Verdict, deadline: float
) -> Iterator[str]:
    """What comes of each edit, up to the first with which everything holds, or one that is stuck."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        try_all(tree, name, tried, quickly, verdict, writing)
    os.close(writing)
    patience = STARTED_SECONDS
    try:
        while True:
            left = min(patience, deadline - time.monotonic())
            said = os.read(reading, 1).decode() if left > 0 and select.select([reading], [], [], left)[0] else ""
            patience = JUDGED_SECONDS if said == PROMISING else STUCK_SECONDS
            if said == PROMISING:
                continue
            yield said or NOTHING
            if said in ("", ALL):
                return
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reading)


def try_all(
    tree: ast.Module, name: str, tried: Sequence[Edit], quickly: Quickly, verdict: Verdict, writing: int
) -> None:
    """Say what comes of each edit, and end this process."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    warnings.simplefilter("ignore")
    try:
        for edit in tried:
            os.write(writing, of_program(edit.applied(tree), name, quickly, verdict, writing).encode())
    finally:
        os.kill(os.getpid(), signal.SIGKILL)


def of_program(program: ast.Module, name: str, quickly: Quickly, verdict: Verdict, writing: int) -> str:
    """What holds of a function of a program, if that can be run."""
    module: dict[str, Any] = {"__name__": "mended"}
    try:
        exec(compile(program, "mended.py", "exec"), module)
        if not quickly(module[name]):
            return NOTHING
        os.write(writing, PROMISING.encode())
        return verdict(module[name])
    except BaseException:
        return NOTHING
