"""A job of many processes as one child of this process: it ends when this process does, and none of it is left over.

The supervisor asks Linux to give it the children whose parents die, so that no rank survives a launcher that was
killed. It also has its launcher asked to end when it is itself killed.
"""

import ctypes
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

from zerosim.worlds.processes import children_of

ENDING = 5.0
"""Seconds that a launcher has for ending its ranks, once it is asked to."""
LOOKOUT = 0.01
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that ask a process to end."""
PARENT_DEATH_SIGNAL, SUBREAPER = 1, 36  # options of Linux's prctl


def run_job(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a launcher; its exit code, 128 and more where a signal ended it.

    An interrupt, SIGTERM or SIGHUP here ends the job and raises `KeyboardInterrupt`. Even where this process is killed,
    the launcher is asked to end.

    >>> import sys
    >>> run_job([sys.executable, "-c", "import sys; sys.exit(7)"], os.environ)
    7
    """
    others = children_of(os.getpid())
    set_option(SUBREAPER, 1)  # whose parent dies becomes a child of this process, and no orphan
    with interrupted_by_signals():
        try:
            code = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True,
                preexec_fn=end_with_parent,  # noqa: PLW1509 - it takes no lock that another thread may hold
            ).wait()
        finally:
            ignore_signals()
            end_children(others)
            set_option(SUBREAPER, 0)
    return code if code >= 0 else 128 - code


@contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """A context in which a signal that asks this process to end interrupts it."""
    if not hears_signals():
        yield
        return
    handlers = {number: signal.signal(number, interrupt) for number in ENDS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def ignore_signals() -> None:
    """Ignore signals until the end of `interrupted_by_signals`: all that is left is to end the job."""
    if hears_signals():
        for number in ENDS:
            signal.signal(number, signal.SIG_IGN)


def hears_signals() -> bool:
    return threading.current_thread() is threading.main_thread()


def interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def end_children(others: set[int]) -> None:
    """Ask the children that are not among `others`, and their children, to end; those that do not, after a while."""
    deadline = time.monotonic() + ENDING
    asked: set[int] = set()
    while left := children_of(os.getpid()) - others:
        late = time.monotonic() > deadline
        for child in left if late else left - asked:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL if late else signal.SIGTERM)
        asked |= left
        for child in left:
            with suppress(ChildProcessError):
                os.waitpid(child, os.WNOHANG)
        time.sleep(LOOKOUT)


def end_with_parent() -> None:
    """Let the operating system ask this child to end when its parent is gone."""
    set_option(PARENT_DEATH_SIGNAL, signal.SIGTERM)


def set_option(option: int, value: int) -> None:
    """Set one of the options of this process that Linux has; elsewhere, nothing."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(option, value, 0, 0, 0)
