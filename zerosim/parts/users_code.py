"""Limits for a user's code in this process: it may fail, but neither end the process silently nor run for ever.

This is no sandbox. It prevents accidents: `sys.exit`, `os._exit` and all of `os.exec*` are errors of the function that
called them, on its rank, and the import of a file has 60 s. An end of the process through C, and a loop inside C, are
not caught. `grading` therefore runs a learner's code in a separate process.
"""

import inspect
import linecache
import os
import posix
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import FrameType
from typing import Any, NoReturn

from zerosim.errors import CollectiveError, ZerosimError

LEAVE = os._exit
ENDINGS = ("_exit", "execv", "execve")
"""The functions that end a process at once; all others in `os` call one of them."""
AGAIN_SECONDS = 1.0
"""The interval at which `TimeoutError` is raised again in code that continues after its time limit."""
MOST_TIMES = 5
BROKE = ZerosimError.exit_code


class Leaving(SystemExit):
    """An attempt to end the process at once; `code` names the call."""


@contextmanager
def staying(name: str, rank: int) -> Iterator[None]:
    """A context that turns attempts to end the process into a `CollectiveError`."""
    try:
        yield
    except SystemExit as error:
        called = error.code if isinstance(error, Leaving) else f"sys.exit({error.code!r})"
        raise CollectiveError(f"{name} called {called} on rank {rank}; end a rank's program by returning") from error


@cache
def refuse_to_leave() -> None:
    """Make `ENDINGS` raise `SystemExit` in this process from now on; forked children keep the originals."""
    for name in ENDINGS:
        refused = refusing(name, getattr(posix, name))
        for module in (os, posix):
            setattr(module, name, refused)


def refusing(name: str, honest: Callable[..., NoReturn]) -> Callable[..., NoReturn]:
    """A function that calls `honest` in other processes and raises in this one."""
    here = os.getpid()

    def called(*given: Any, **named: Any) -> NoReturn:
        if os.getpid() != here:
            honest(*given, **named)
        raise Leaving(f"os.{name}")

    return called


@contextmanager
def ended_after(seconds: float, what: str) -> Iterator[None]:
    """A context with a time limit for the main thread, in which `TimeoutError` is raised afterwards.

    Code that continues nevertheless ends the process, with one line and exit code 3.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    said, times = f"{what} after {seconds:g} seconds: look for a loop that never ends", 0

    def tell(number: int, frame: FrameType | None) -> NoReturn:
        nonlocal times
        times += 1
        if times > MOST_TIMES:
            sys.stderr.write(f"zerosim: {said}\n")
            sys.stderr.flush()
            LEAVE(BROKE)
        raise TimeoutError(said)

    before = signal.signal(signal.SIGALRM, tell)
    timer = signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, before)


def error_line(error: BaseException, function: Callable[..., Any]) -> str:
    """The error in one line, with the innermost traceback line in the file of `function`."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    file = code.co_filename if code is not None else ""
    lines = [each.lineno for each in traceback.extract_tb(error.__traceback__) if each.filename == file]
    said = f"{type(error).__name__}: {' '.join(str(error).split())}"
    if not lines or lines[-1] is None:
        return said
    text = linecache.getline(file, lines[-1]).strip()
    return f"line {lines[-1]}, {text}: {said}" if text else f"line {lines[-1]}: {said}"
