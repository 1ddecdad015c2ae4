"""Resident memory of this process, as the operating system counts it."""

import ctypes
import os

M_ARENA_MAX = -8
M_MMAP_THRESHOLD = -3
M_TRIM_THRESHOLD = -1
LEAST_RETURNED = 1 << 18
"""The least bytes of an array whose memory is returned as soon as it is freed, after `return_freed`."""
LARGEST_KEPT = 1 << 25
"""The largest array whose memory glibc lets a process keep, in bytes."""


def resident_bytes() -> int:
    """Resident bytes of this process, after free memory has been returned; 0 if the system does not say."""
    give_back()
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def keep_freed() -> None:
    """Keep freed memory for later allocations, until `give_back`, if the C library supports it (glibc).

    Otherwise it returns the memory of large arrays to the operating system, which clears each page again when the next
    array uses it: a tenth of a step of a transformer.
    """
    try:
        library = ctypes.CDLL(None)
        library.mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT)
        library.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
    except (AttributeError, OSError):
        return


def return_freed() -> None:
    """Return the memory of large arrays to the operating system as soon as they are freed, if glibc is used.

    A limit on memory counts kept memory. Otherwise a row that did not fit would leave no memory for the next one.
    """
    try:
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LEAST_RETURNED)
    except (AttributeError, OSError):
        return


def give_back() -> None:
    """Return freed memory to the operating system, if the C library supports it (glibc).

    glibc would keep the top of a thread's own arena, so threads that start from here on share the first arena.
    """
    try:
        library = ctypes.CDLL(None)
        library.mallopt(M_ARENA_MAX, 1)
        library.malloc_trim(0)
    except (AttributeError, OSError):
        return
