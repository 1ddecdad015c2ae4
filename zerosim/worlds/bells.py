"""Waiting for data of another process: by polling, or asleep until that process wakes the waiting one.

A rank with a core of its own polls and yields, so it sees a message within a microsecond. Ranks that share cores yield
some times, then sleep: a rank first sets a flag, polls once more, and lets Linux wait for a change of the flag
(`futex`). A writer reads the flag after each write; if it is set, the writer clears it and wakes the sleeper.

Both sides have a memory barrier between their access to the data and their access to the flag, so at least one of the
two sees the other. Even if a `wake` call were lost, a sleeper polls again after a millisecond. Without `futex` it
sleeps for increasing times, up to that millisecond.

Sleeping costs a message 5 to 50 µs more than yielding, but frees the core for other ranks.
"""

import ctypes
import os
import platform
import sys
import time
from collections.abc import Callable

from zerosim.worlds.copies import Bytes

LONGEST = 1e-3
"""The longest sleep in seconds, if no writer wakes the sleeper."""
SHORTEST = 2e-5
YIELDS = 40
"""The number of polls with which a rank that shares its core yields, before it sleeps."""
FUTEX_NUMBERS = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221, "s390x": 238}
"""The number of Linux's system call `futex`, by machine."""
WAIT, WAKE = 0, 1
FUTEX = FUTEX_NUMBERS.get(platform.machine()) if sys.platform == "linux" else None


class TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


ALMOST_NOTHING = TimeSpec(0, int(LONGEST * 1e9))


def futex_call() -> Callable[..., int] | None:
    """Linux's `futex` as a function of an address, an operation and a value; None on other systems."""
    if FUTEX is None:
        return None
    call = ctypes.CDLL(None).syscall
    call.argtypes = [ctypes.c_long, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_void_p]
    return call


CALL = futex_call()


class Bell:
    """A flag in shared memory: whether its owner is asleep; `sync` is a memory barrier.

    >>> import numpy as np
    >>> bell = Bell(np.zeros(64, np.uint8), lambda: None)
    >>> bell.announce()
    >>> bell.ring()
    >>> began = time.monotonic()
    >>> bell.sleep(0)
    >>> time.monotonic() - began < 60
    True
    """

    def __init__(self, memory: Bytes, sync: Callable[[], None]) -> None:
        self._sync = sync
        self._note = memoryview(memory).cast("I")  # type: ignore[arg-type]
        self._address = memory.ctypes.data

    def announce(self) -> None:
        """Set the flag: the owner will sleep unless its next poll succeeds."""
        self._note[0] = 1
        self._sync()

    def sleep(self, naps: int) -> None:
        """Sleep until `ring`, at most a millisecond; `naps` is the number of sleeps in this wait so far."""
        if CALL is None or CALL(FUTEX, self._address, WAIT, 1, ctypes.byref(ALMOST_NOTHING)) not in (0, -1):
            time.sleep(min(SHORTEST * 2**min(naps, 10), LONGEST))
        self._note[0] = 0

    def ring(self) -> None:
        """Wake the owner, if it is asleep, after data were written for it."""
        self._sync()
        if self._note[0]:
            self._note[0] = 0
            if CALL is not None:
                CALL(FUTEX, self._address, WAKE, 1, None)


class Patience:
    """The pause between two polls: it yields or, after `YIELDS` polls with a `bell`, sleeps."""

    def __init__(self, bell: Bell | None) -> None:
        self._bell, self._looks, self._announced = bell, 0, False

    def __call__(self) -> None:
        self._looks += 1
        if self._bell is None or self._looks <= YIELDS:
            os.sched_yield()
        elif self._announced:
            self._bell.sleep(self._looks - YIELDS)
            self._announced = False
        else:
            self._bell.announce()
            self._announced = True
