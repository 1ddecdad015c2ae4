"""Limits for a user's code in this process: `sys.exit` is an error on its rank, and an import has a time limit.

This is no sandbox. It prevents accidents: `sys.exit` is an error of the function that called it, on its rank, and the
import of a file has 60 s. `os._exit`, an end of the process through C, and a loop inside C, are not caught.
"""

import inspect
import linecache
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

from zerosim.core.errors import CollectiveError

AGAIN_SECONDS = 1.0
"""The interval at which `TimeoutError` is raised again in code that continues after its time limit."""


@contextmanager
def staying(name: str, rank: int) -> Iterator[None]:
    """A context that turns `sys.exit` into a `CollectiveError`."""
    try:
        yield
    except SystemExit as error:
        raise CollectiveError(
            f"{name} called sys.exit({error.code!r}) on rank {rank}; end a rank's program by returning") from error


@contextmanager
def ended_after(seconds: float, what: str) -> Iterator[None]:
    """A context with a time limit for the main thread, in which `TimeoutError` is raised afterwards."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def tell(number: int, frame: FrameType | None) -> NoReturn:
        raise TimeoutError(f"{what} after {seconds:g} seconds: look for a loop that never ends")

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
