"""The present calls of a thread, read from another thread: they name the line of an endless loop."""

import ctypes
import gc
import sys
from traceback import walk_stack, walk_tb
from types import FrameType
from typing import NamedTuple


class CodePlace(NamedTuple):
    """A line of a file in a call stack, and its local variables that are numbers."""

    file: str
    line: int
    numbers: dict[str, float]


def places(thread: int | None) -> list[CodePlace]:
    """The call stack of the thread with this identity, the innermost call last; empty if it has ended.

    >>> import threading
    >>> def here():
    ...     step = 3
    ...     return places(threading.get_ident())
    >>> {'step': 3} in [call.numbers for call in here()]
    True
    """
    gc.collect()  # if it begins within the next call, CPython up to 3.11.7 deadlocks (python/cpython issue 106883)
    frame = sys._current_frames().get(thread or 0)
    return [] if frame is None else [place(*call) for call in walk_stack(frame)][::-1]


def places_of(error: BaseException) -> list[CodePlace]:
    """The lines at which an exception was raised, the innermost call last."""
    return [place(*call) for call in walk_tb(error.__traceback__)]


def throw(thread: int | None, error: type[BaseException]) -> None:
    """Raise an error in another thread, as soon as that runs Python code; this can end an endless loop."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread or 0), ctypes.py_object(error))


def line_in(file: str) -> int:
    """The line of a file that this thread runs, in the innermost call; 0 if no call is in the file."""
    return next((line for frame, line in walk_stack(sys._getframe(1)) if frame.f_code.co_filename == file), 0)


def place(frame: FrameType, line: int) -> CodePlace:
    numbers = {name: value for name, value in frame.f_locals.items() if isinstance(value, int | float)}
    return CodePlace(frame.f_code.co_filename, line, numbers)
