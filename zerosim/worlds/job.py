"""A job of many processes as one child of this process: it ends when this process does, and no process is left over.

Linux makes this process the parent of processes whose parents die (`PR_SET_CHILD_SUBREAPER`), so no rank survives a
launcher that was killed. Linux also signals the launcher when this process is killed.
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
"""The seconds that a launcher has to end its ranks, once it is asked to."""
LOOKOUT = 0.01
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that ask a process to end."""
PARENT_DEATH_SIGNAL, SUBREAPER = 1, 36  # options of Linux's prctl


def run_job(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a launcher; its exit code, 128 and more if a signal ended it.

    An interrupt, SIGTERM or SIGHUP here ends the job and raises `KeyboardInterrupt`. If this process is killed, Linux
    asks the launcher to end.

    >>> import sys
    >>> run_job([sys.executable, "-c", "import sys; sys.exit(7)"], os.environ)
    7
    """
    others = children_of(os.getpid())
    set_option(SUBREAPER, 1)  # a process whose parent dies becomes a child of this process
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
    """A context in which a signal that asks this process to end raises `KeyboardInterrupt`."""
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
    """Ignore signals until the end of `interrupted_by_signals`: only the job is left to end."""
    if hears_signals():
        for number in ENDS:
            signal.signal(number, signal.SIG_IGN)


def hears_signals() -> bool:
    return threading.current_thread() is threading.main_thread()


def interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def end_children(others: set[int]) -> None:
    """Ask all children except `others`, and their children, to end; kill those that have not ended after `ENDING`
    seconds."""
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
    """Let the operating system ask this child to end when its parent ends."""
    set_option(PARENT_DEATH_SIGNAL, signal.SIGTERM)


def set_option(option: int, value: int) -> None:
    """Set one of Linux's options of this process; does nothing on other systems."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(option, value, 0, 0, 0)
