"""Resident memory of this process, as the operating system counts it."""

import ctypes
import os

M_ARENA_MAX = -8
M_MMAP_THRESHOLD = -3
M_TRIM_THRESHOLD = -1
LEAST_RETURNED = 1 << 18
"""Bytes of an array: what is as large is returned as soon as it is freed, where that is asked for."""
LARGEST_KEPT = 1 << 25
"""Bytes of an array: glibc lets none that is larger be kept."""


def resident_bytes() -> int:
    """Resident bytes of this process, after what is free has been given back; 0 where that cannot be told."""
    give_back()
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def keep_freed() -> None:
    """Keep freed memory for what is taken next, until `give_back`, where the C library can be asked to (glibc).

    Otherwise it returns what large arrays had to the operating system, which clears each page anew when the next array
    touches it: a tenth of a step of a transformer.
    """
    try:
        library = ctypes.CDLL(None)
        library.mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT)
        library.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
    except (AttributeError, OSError):
        return


def return_freed() -> None:
    """Return what large arrays had to the operating system as soon as they are freed, where glibc can be asked to.

    A limit on memory counts what is kept. Otherwise a row that did not fit would leave the next one no room.
    """
    try:
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LEAST_RETURNED)
    except (AttributeError, OSError):
        return


def give_back() -> None:
    """Return freed memory to the operating system, where the C library can be asked to (glibc).

    Of a thread's own arena glibc would keep the top, so threads that begin from here on share the first one.
    """
    try:
        library = ctypes.CDLL(None)
        library.mallopt(M_ARENA_MAX, 1)
        library.malloc_trim(0)
    except (AttributeError, OSError):
        return
