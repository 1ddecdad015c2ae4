"""The present calls of a thread, read from another thread: they name the line of an endless loop, and show whether a
communicator is in use.
"""

import ctypes
import gc
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NamedTuple

from zerosim.core.comm import Renumbered
from zerosim.core.errors import CollectiveError

USERS = ("zerosim.worlds", "zerosim.collectives")
"""The modules in which a call with a communicator is one message, or one collective."""


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
    found = [place(each, each.f_lineno) for each in calls(call_of(thread))]
    return found[::-1]


def call_of(thread: int | None) -> FrameType | None:
    """The innermost call of the thread with this identity; None if it has ended.

    The collection of cycles is off meanwhile: if it begins in `sys._current_frames`, CPython up to 3.11.7 deadlocks
    (python/cpython issue 106883).
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames().get(thread or 0)
    finally:
        if collects:
            gc.enable()


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


class OneThread:
    """A communicator that one thread uses at a time; `rank` is its number.

    The messages of two collectives at once would be received in each other's place. So a thread that finds another as
    `user` claims the communicator first, which is refused while the other is in a call with it. A comparison of two
    numbers for each message is all that this costs a single thread.
    """

    rank: int
    user = 0
    """The identity of the last thread that communicated; 0 before the first."""

    def check_thread(self) -> None:
        """Make the calling thread the user; raises `CollectiveError` while another one is in a call."""
        last, self.user = self.user, threading.get_ident()
        if last == self.user:
            return
        if last and any(map(self._is_used_in, calls(call_of(last)))):
            self.user = last
            raise CollectiveError(
                f"rank {self.rank}: two threads use one communicator at once; use it from one thread at a time, or "
                "give each thread a channel of its own (connect().channel() under MPI; the local world has none)")

    def _is_used_in(self, call: FrameType) -> bool:
        return call.f_globals.get("__name__", "").startswith(USERS) and any(
            carrier(value) is self for value in call.f_locals.values())


def carrier(found: object) -> object:
    """The communicator below those with other numbers for its ranks."""
    while isinstance(found, Renumbered):
        found = found.comm
    return found


def line_in(file: str) -> int:
    """The line of a file that this thread runs, in the innermost call; 0 if no call is in the file."""
    return next((each.f_lineno for each in calls(sys._getframe(1)) if each.f_code.co_filename == file), 0)


def calls(frame: FrameType | None) -> Iterator[FrameType]:
    """A call and its callers."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def place(frame: FrameType, line: int) -> CodePlace:
    numbers = {name: value for name, value in frame.f_locals.items() if isinstance(value, int | float)}
    return CodePlace(frame.f_code.co_filename, line, numbers)
