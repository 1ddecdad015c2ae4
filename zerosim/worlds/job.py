"""A job of many processes as one child of this one: it ends when this one does, and nothing of it lives on."""

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
SETTLING = 1.0
"""Seconds that ranks have for ending by themselves, once their launcher has ended."""
LOOKOUT = 0.01
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that ask a process to end."""
PARENT_DEATH_SIGNAL, SUBREAPER = 1, 36  # options of Linux's prctl


def run_job(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a launcher; its exit code, below 0 where a signal ended it.

    An interrupt, SIGTERM or SIGHUP here ends the job and raises `KeyboardInterrupt`. Even where this process is killed,
    the launcher is asked to end.

    >>> import sys
    >>> run_job([sys.executable, "-c", "import sys; sys.exit(7)"], os.environ)
    7
    """
    before = children_of(os.getpid())
    set_option(SUBREAPER, 1)  # whose parent dies becomes a child of this process, and no orphan
    with interrupted_by_signals():
        launcher = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True,
            preexec_fn=end_with_parent,  # noqa: PLW1509 - it takes no lock that another thread may hold
        )
        try:
            return launcher.wait()
        finally:
            ignore_signals()
            with suppress(OSError):
                launcher.terminate()
            with suppress(subprocess.TimeoutExpired):
                launcher.wait(ENDING)
            end_strays(before | {launcher.pid})
            launcher.kill()
            launcher.wait()


@contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """Within, what asks this process to end interrupts it."""
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
    """From here until the end of `interrupted_by_signals`, nothing interrupts: all that is left is to end the job."""
    if hears_signals():
        for number in ENDS:
            signal.signal(number, signal.SIG_IGN)


def hears_signals() -> bool:
    return threading.current_thread() is threading.main_thread()


def interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def end_strays(others: set[int]) -> None:
    """Wait a little for the children that are not among `others`, and for theirs, then kill them."""
    patience = time.monotonic() + SETTLING
    while strays := children_of(os.getpid()) - others:
        for stray in strays:
            with suppress(ChildProcessError, ProcessLookupError):
                if time.monotonic() > patience:
                    os.kill(stray, signal.SIGKILL)
                os.waitpid(stray, os.WNOHANG)
        time.sleep(LOOKOUT)


def end_with_parent() -> None:
    """In a child: be asked to end when the parent is gone, however that ended."""
    set_option(PARENT_DEATH_SIGNAL, signal.SIGTERM)


def set_option(option: int, value: int) -> None:
    """Set one of the options of this process that Linux has; elsewhere, nothing."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(option, value, 0, 0, 0)
