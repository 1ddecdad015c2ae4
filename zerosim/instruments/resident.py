"""What this process has in memory, as the operating system counts it."""

import ctypes
import os

M_ARENA_MAX = -8


def resident_bytes() -> int:
    """Resident bytes of this process, after what is free has been given back; 0 where that cannot be told."""
    give_back()
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


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
