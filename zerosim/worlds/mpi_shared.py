"""The window in which the ranks of a host share boxes: `MPI_Win_allocate_shared` for the ranks of a communicator.

    segment    a rank's part of the window: its bell, then one box for each other rank of the host, to which it sends

A window is populated when it is made (`madvise`, Linux 5.14): otherwise a write to it ends the process by a signal if
/dev/shm is full. A failure on one rank of a host counts for all, and they then use MPI's messages.

The memory is neither in a ledger nor freed before MPI ends: 1 MiB for each ordered pair of ranks, less if a host has
more than 6.
"""

import ctypes
import mmap
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from zerosim.worlds.bells import Bell
from zerosim.worlds.boxes import LINE, RING, Inbox, Outbox
from zerosim.worlds.copies import Bytes
from zerosim.worlds.neighbours import readable

if TYPE_CHECKING:
    from mpi4py import MPI

BUDGET = 32 << 20
"""The bytes of a window, shared by all pairs."""
LARGEST, SMALLEST = 1 << 20, 1 << 12
"""The bytes of a ring, at most and at least."""
PIECES = 8
"""The least number of pieces in a full ring."""
SPARE = 2
"""The free memory must be at least this multiple of a window."""
POPULATE_WRITE = 23  # an option of Linux's madvise
INVALID = 22  # an older Linux lacks the option


class Shared(NamedTuple):
    """The boxes of this rank, by the number of the other in the communicator, or the reason why there are none."""

    outboxes: dict[int, Outbox]
    inboxes: dict[int, Inbox]
    bell: Bell | None
    refused: str = ""


NOTHING_SHARED = Shared({}, {}, None)


def share(comm: "MPI.Intracomm", *, sleeps: bool) -> Shared:
    """Boxes between this rank and each other one of `comm` on its host. All ranks of `comm` call this.

    With `sleeps`, which is the same on all ranks of a host, a writer wakes a sleeping reader.
    """
    from mpi4py import MPI  # noqa: PLC0415 - a communicator exists, so it is loaded

    host: Any = comm.Split_type(MPI.COMM_TYPE_SHARED)
    try:
        if host.size == 1:
            return NOTHING_SHARED
        numbers = host.allgather(comm.rank)
        size = segment_bytes(host.size)
        refused = first(host, no_room(size * host.size))
        if refused:
            return Shared({}, {}, None, refused)
        try:
            window = MPI.Win.Allocate_shared(size, 1, comm=host)
        except MPI.Exception as error:
            return Shared({}, {}, None, f"MPI_Win_allocate_shared: {error}")
        parts: list[Any] = [window.Shared_query(rank)[0] for rank in range(host.size)]
        segments = [np.frombuffer(part, np.uint8) for part in parts]
        unified = window.Get_attr(MPI.WIN_MODEL) == MPI.WIN_UNIFIED
        refused = first(host, unpopulated(segments[host.rank]) if unified else "windows of this MPI are not unified")
        if refused:
            window.Free()
            return Shared({}, {}, None, refused)
        window.Lock_all(MPI.MODE_NOCHECK)
        segments[host.rank][:] = 0
        window.Sync()
        processes = readable(host)  # gathers from all ranks, so none goes on before every segment is zero
        window.Sync()
        return boxes(segments, host.rank, numbers, window, sleeps, processes)
    finally:
        host.Free()


def boxes(
    segments: list[Bytes], mine: int, numbers: list[int], window: Any, sleeps: bool, processes: list[int]
) -> Shared:
    bells = [Bell(segment[:LINE], window.Sync) if sleeps else None for segment in segments]
    others = [rank for rank in range(len(segments)) if rank != mine]
    most = ring_bytes(len(segments)) // PIECES
    return Shared(
        {numbers[rank]: Outbox(box(segments, mine, rank), most, window.Sync, bells[rank], bool(processes))
         for rank in others},
        {numbers[rank]: Inbox(box(segments, rank, mine), most, window.Sync, bells[rank],
                              processes[rank] if processes else 0) for rank in others},
        bells[mine],
    )


def box(segments: list[Bytes], source: int, to: int) -> Bytes:
    """The memory of the box from one rank of a host to another."""
    size = RING + ring_bytes(len(segments))
    start = LINE + (to - (to > source)) * size
    return segments[source][start : start + size]


def ring_bytes(ranks: int) -> int:
    """The bytes of a ring if `ranks` ranks share a host: a power of two.

    >>> ring_bytes(2) == ring_bytes(6) == LARGEST, ring_bytes(8) == LARGEST // 2
    (True, True)
    """
    share = BUDGET // (ranks * (ranks - 1))
    return min(max(1 << share.bit_length() - 1, SMALLEST), LARGEST)


def segment_bytes(ranks: int) -> int:
    """The bytes of a rank's segment: whole pages."""
    needed = LINE + (ranks - 1) * (RING + ring_bytes(ranks))
    return -(-needed // mmap.PAGESIZE) * mmap.PAGESIZE


def first(host: "MPI.Intracomm", refused: str) -> str:
    """The reason of the first rank that refuses; empty if none does."""
    return next(filter(None, host.allgather(refused)), "")


def no_room(needed_bytes: int) -> str:
    """The reason why `needed_bytes` of shared memory are not available; empty if they are, or if that is unknown."""
    with suppress(OSError, AttributeError):
        found = os.statvfs("/dev/shm")
        free = found.f_bavail * found.f_frsize
        if free < SPARE * needed_bytes:
            return f"/dev/shm has {free / 1e6:.1f} MB left, and {SPARE * needed_bytes / 1e6:.1f} MB are wanted"
    return ""


def unpopulated(segment: Bytes) -> str:
    """The reason why the memory of a segment is not available; empty if it is, or if that is unknown."""
    advise = getattr(ctypes.CDLL(None, use_errno=True), "madvise", None)
    if advise is None:
        return ""
    start = segment.ctypes.data
    begin = start - start % mmap.PAGESIZE
    length = start + len(segment) - begin
    if advise(ctypes.c_void_p(begin), ctypes.c_size_t(length), POPULATE_WRITE) == 0:
        return ""
    number = ctypes.get_errno()
    return "" if number == INVALID else f"shared memory cannot be populated: {os.strerror(number)}"
