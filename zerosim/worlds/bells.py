"""Waiting for what another process writes: by looking again and again, or asleep until it rings.

A rank with a core of its own looks and yields, so that it sees a message within a microsecond. Ranks that share cores
yield some times, then sleep: first a rank notes that it will, looks once more, and lets Linux wait for a change of that
note (`futex`). Who writes for it looks at the note and, if it is set, clears it and wakes the sleeper.

Between what is written and the look at the note stands a memory barrier, on both sides, so that one of the two sees the
other. Even if a call of `wake` got lost, a sleeper looks again after a millisecond. Where there is no `futex` it sleeps
for ever longer, up to that millisecond.

Sleeping costs a message 5 to 50 µs more than yielding; but a core that nobody's looking keeps busy computes for others.
"""

import ctypes
import os
import platform
import sys
import time
from collections.abc import Callable

from zerosim.worlds.copies import Bytes

LONGEST = 1e-3
"""Seconds between two looks of a sleeper that nobody wakes."""
SHORTEST = 2e-5
YIELDS = 40
"""Looks at which a rank that shares its core lets others have it, before it sleeps."""
FUTEX_NUMBERS = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221, "s390x": 238}
"""The number of Linux's system call `futex`, by machine."""
WAIT, WAKE = 0, 1
FUTEX = FUTEX_NUMBERS.get(platform.machine()) if sys.platform == "linux" else None


class TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


ALMOST_NOTHING = TimeSpec(0, int(LONGEST * 1e9))


def futex_call() -> Callable[..., int] | None:
    """Linux's `futex`, of an address, an operation and a value; None where there is none."""
    if FUTEX is None:
        return None
    call = ctypes.CDLL(None).syscall
    call.argtypes = [ctypes.c_long, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_void_p]
    return call


CALL = futex_call()


class Bell:
    """A note in shared memory, whether the one it belongs to is asleep; `sync` is a memory barrier.

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
        """Note that its owner will sleep unless it sees something at its next look."""
        self._note[0] = 1
        self._sync()

    def sleep(self, naps: int) -> None:
        """Sleep until it rings, at most a millisecond; `naps` is how often its owner has just done so."""
        if CALL is None or CALL(FUTEX, self._address, WAIT, 1, ctypes.byref(ALMOST_NOTHING)) not in (0, -1):
            time.sleep(min(SHORTEST * 2**min(naps, 10), LONGEST))
        self._note[0] = 0

    def ring(self) -> None:
        """Wake its owner, if that is asleep, after something was written for it."""
        self._sync()
        if self._note[0]:
            self._note[0] = 0
            if CALL is not None:
                CALL(FUTEX, self._address, WAKE, 1, None)


class Patience:
    """What a rank does between two looks for a message: it yields; where it has a `bell` it sleeps after a while."""

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
