"""The present lines of a thread, read from another thread: they name the line of an endless loop."""

import ctypes
import sys
from collections.abc import Iterator
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
    >>> here()[-2].numbers
    {'step': 3}
    """
    found = [place(each, each.f_lineno) for each in calls(sys._current_frames().get(thread or 0))]
    return found[::-1]


def places_of(error: BaseException) -> list[CodePlace]:
    """The lines at which an exception was raised, the innermost call last."""
    raised, found = error.__traceback__, []
    while raised is not None:
        found.append(place(raised.tb_frame, raised.tb_lineno))
        raised = raised.tb_next
    return found


def throw(thread: int | None, error: type[BaseException]) -> None:
    """Raise an error in another thread, as soon as that runs Python code; this can end an endless loop."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread or 0), ctypes.py_object(error))


def calls(frame: FrameType | None) -> Iterator[FrameType]:
    """A call and its callers."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def place(frame: FrameType, line: int) -> CodePlace:
    numbers = {name: value for name, value in frame.f_locals.items() if isinstance(value, int | float)}
    return CodePlace(frame.f_code.co_filename, line, numbers)
