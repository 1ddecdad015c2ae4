"""Repairs: an edit of a learner's program that makes all claims hold, found by trying.

Edits are tried in separate processes, because a changed program may never end. An edit is offered only after it was
tried on all numbers of ranks.
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
"""The time limits of the quick check of one edit, of the full check, and of the first answer."""

Quickly = Callable[[Callable[..., Any]], bool]
"""Whether the quick check of a function finds no error."""
Verdict = Callable[[Callable[..., Any]], str]
"""The verdict on a function: `ALL` if all claims hold, `SOME` if the failed claim now holds, else `NOTHING`."""
ALL, SOME, NOTHING, PROMISING = "+", "~", "-", "."


def mend(
    source: str, name: str, others: Sequence[str], quickly: Quickly, verdict: Verdict, budget_seconds: float
) -> tuple[str, bool] | None:
    """An edit of `source`, in words, that makes all claims about the function `name` hold, and True.

    If there is none, an edit that repairs at least the failed claim, and False; else None.
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
    """The verdict on each edit by its number, up to the first with `ALL` or the time limit."""
    deadline, found = time.monotonic() + budget_seconds, dict[int, str]()
    while len(found) < len(tried) and time.monotonic() < deadline and ALL not in found.values():
        for said in progress(tree, name, tried[len(found) :], quickly, verdict, deadline):
            found[len(found)] = said
    return found


def progress(
    tree: ast.Module, name: str, tried: Sequence[Edit], quickly: Quickly, verdict: Verdict, deadline: float
) -> Iterator[str]:
    """The verdict on each edit, up to the first with `ALL` or one that does not end."""
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
    """Write the verdict on each edit to the pipe, then end this process."""
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
    """The verdict on a function of a program, if the program runs."""
    module: dict[str, Any] = {"__name__": "mended"}
    try:
        exec(compile(program, "mended.py", "exec"), module)
        if not quickly(module[name]):
            return NOTHING
        os.write(writing, PROMISING.encode())
        return verdict(module[name])
    except BaseException:
        return NOTHING
