"""Resident memory of this process, as the operating system counts it, and a limit that shows the stages that fit."""

import ctypes
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy as np

M_ARENA_MAX = -8
M_MMAP_THRESHOLD = -3
M_TRIM_THRESHOLD = -1
LEAST_RETURNED = 1 << 18
"""The least bytes of an array whose memory is returned as soon as it is freed, after `return_freed`."""
LARGEST_KEPT = 1 << 25
"""The largest array whose memory glibc lets a process keep, in bytes."""


def allocator(name: str, *arguments: int) -> None:
    """Call a function of the C library's allocator, if it has it, as glibc does."""
    with suppress(AttributeError, OSError):
        getattr(ctypes.CDLL(None), name)(*arguments)


def resident_bytes() -> int:
    """Resident bytes of this process, after freed memory has been returned; 0 if the system does not say.

    glibc would keep the top of a thread's own arena, so threads that start from here on share the first arena.
    """
    allocator("mallopt", M_ARENA_MAX, 1)
    allocator("malloc_trim", 0)
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def keep_freed() -> None:
    """Keep freed memory for later allocations, until `resident_bytes`, if the C library supports it (glibc).

    Otherwise it returns the memory of large arrays to the operating system, which clears each page again when the next
    array uses it: a tenth of a step of a transformer.
    """
    allocator("mallopt", M_MMAP_THRESHOLD, LARGEST_KEPT)
    allocator("mallopt", M_TRIM_THRESHOLD, 2**31 - 1)


def return_freed() -> None:
    """Return the memory of large arrays to the operating system as soon as they are freed, if glibc is used.

    A limit on memory counts kept memory. Otherwise a row that did not fit would leave no memory for the next one.
    """
    allocator("mallopt", M_MMAP_THRESHOLD, LEAST_RETURNED)


@contextmanager
def memory_limit(allowed_bytes: int) -> Iterator[None]:
    """A context in which the process gets at most `allowed_bytes` more memory; more raises `MemoryError`.

    Each rank sets its own. Model states are allocated, and the rest of a step's peak is tried, before the first step,
    so a stage that does not fit fails there, on all ranks at once, and the other rows are trained. 0 is no limit. The
    operating system counts private writable memory (`RLIMIT_DATA`), used or not. Call `let_blas_allocate` before:
    otherwise BLAS ends the process when it cannot allocate its buffers.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if allowed_bytes:
        most = sys.maxsize if hard == resource.RLIM_INFINITY else hard
        resource.setrlimit(resource.RLIMIT_DATA, (min(data_bytes() + allowed_bytes, most), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def limited() -> bool:
    """Whether the operating system limits the memory of this process."""
    limits = resource.getrlimit(resource.RLIMIT_DATA)[0], resource.getrlimit(resource.RLIMIT_AS)[0]
    return any(limit != resource.RLIM_INFINITY for limit in limits)


def let_blas_allocate() -> None:
    """Multiply matrices that are large enough for BLAS to allocate its buffers; `MemoryError` if there is too little
    memory.

    Call it after the number of BLAS threads has been set: OpenBLAS then reserves a buffer that products used before.
    """
    np.empty(1 << 26, np.uint8)    # more than OpenBLAS allocates on one thread
    for dtype in (np.float32, np.float64):
        matrix = np.ones((256, 256), dtype)
        np.matmul(matrix, matrix)


def data_bytes() -> int:
    """Private and writable memory of this process, as Linux counts it against `RLIMIT_DATA`."""
    with open("/proc/self/status", encoding="ascii") as status:
        line = next(line for line in status if line.startswith("VmData:"))
    return int(line.split()[1]) * 1024
