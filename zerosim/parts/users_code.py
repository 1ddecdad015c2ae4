"""A user's code in this process: it may fail, but neither end the process as if all were well nor keep it for ever.

This is no prison. It prevents that a proof ends by accident: `sys.exit`, `os._exit` and all of `os.exec*` are errors
of the function that called them, on its rank, and a file has 60 s to be imported. What ends the process through C,
and a loop inside C, are not caught. `grading` therefore gives a learner a process of its own.
"""

import os
import posix
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import FrameType
from typing import Any, NoReturn

from zerosim.errors import CollectiveError, ZerosimError

LEAVE = os._exit
ENDINGS = ("_exit", "execv", "execve")
"""What ends a process and runs no more of its code; all that `os` has of the kind ends in one of them."""
AGAIN_SECONDS = 1.0
"""How often code that went on after its time was up is told so."""
MOST_TIMES = 5
BROKE = ZerosimError.exit_code


class Leaving(SystemExit):
    """In place of a call that would have ended the process at once; `code` has its words."""


@contextmanager
def staying(name: str, rank: int) -> Iterator[None]:
    """Turn what would end the process into a `CollectiveError`, for the body of a `with`."""
    try:
        yield
    except SystemExit as error:
        called = error.code if isinstance(error, Leaving) else f"sys.exit({error.code!r})"
        raise CollectiveError(f"{name} called {called} on rank {rank}; end a rank's program by returning") from error


@cache
def refuse_to_leave() -> None:
    """Make `ENDINGS` raise `SystemExit` in this process from now on; children that it forks keep the originals."""
    for name in ENDINGS:
        refused = refusing(name, getattr(posix, name))
        for module in (os, posix):
            setattr(module, name, refused)


def refusing(name: str, honest: Callable[..., NoReturn]) -> Callable[..., NoReturn]:
    """A function that is `honest`, but not in this process."""
    here = os.getpid()

    def called(*given: Any, **named: Any) -> NoReturn:
        if os.getpid() != here:
            honest(*given, **named)
        raise Leaving(f"os.{name}")

    return called


@contextmanager
def ended_after(seconds: float, what: str) -> Iterator[None]:
    """Give the main thread so many seconds for the body of a `with`, then raise `TimeoutError` in it.

    Code that goes on nevertheless ends the process, with one line and exit code 3.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    said, told = f"{what} after {seconds:g} seconds: look for a loop that never ends", 0

    def tell(number: int, frame: FrameType | None) -> NoReturn:
        nonlocal told
        told += 1
        if told > MOST_TIMES:
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
