"""Where a thread is, seen from another: names the line that a program without end is in."""

import ctypes
import sys
from collections.abc import Iterator
from types import FrameType
from typing import NamedTuple


class CodePlace(NamedTuple):
    """A line of a file that a call has come to, and those of its variables that are numbers."""

    file: str
    line: int
    numbers: dict[str, float]


def places(thread: int | None) -> list[CodePlace]:
    """The places where the thread of this identity is, the innermost call last; nothing of one that has ended.

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
    """The places where an exception was raised, the innermost call last."""
    raised, found = error.__traceback__, []
    while raised is not None:
        found.append(place(raised.tb_frame, raised.tb_lineno))
        raised = raised.tb_next
    return found


def throw(thread: int | None, error: type[BaseException]) -> None:
    """Let a thread raise an error where it is, as soon as it is in Python's code: a loop cannot be ended otherwise."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread or 0), ctypes.py_object(error))


def calls(frame: FrameType | None) -> Iterator[FrameType]:
    """A call, and those that it is within."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def place(frame: FrameType, line: int) -> CodePlace:
    numbers = {name: value for name, value in frame.f_locals.items() if isinstance(value, int | float)}
    return CodePlace(frame.f_code.co_filename, line, numbers)
