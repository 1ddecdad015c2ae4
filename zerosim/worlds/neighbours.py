"""Reads of another process's memory: `process_vm_readv`, Linux's one copy from a neighbour's array into one's own.

The kernel allows it if one may trace the other: processes of one user, unless Yama's `ptrace_scope` or a container
forbids it. So it is tried before it is used, with a value that only the right process has.
"""

import ctypes
import os
from typing import Any

import numpy as np

from zerosim.allocation import Array
from zerosim.errors import CollectiveError

LIBRARY = ctypes.CDLL(None, use_errno=True)


class MemorySpan(ctypes.Structure):
    """A stretch of memory, C's `struct iovec`."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def read_memory(process: int, address: int, into: Array) -> None:
    """Fill contiguous `into` from the memory of a process. Raises `CollectiveError` if the kernel refuses."""
    done, size = 0, into.nbytes
    while done < size:
        here = MemorySpan(into.ctypes.data + done, size - done)
        there = MemorySpan(address + done, size - done)
        count = LIBRARY.process_vm_readv(
            process, ctypes.byref(here), ctypes.c_ulong(1), ctypes.byref(there), ctypes.c_ulong(1), ctypes.c_ulong(0))
        if count <= 0:
            raise CollectiveError(
                f"the memory of process {process} cannot be read: {os.strerror(ctypes.get_errno())}; unless its rank "
                "has ended, set world.transport = \"mpi\"")
        done += count


def readable(host: Any) -> list[int]:
    """The processes of the ranks of `host`, if every rank can read the memory of each; else none. All ranks call it."""
    token = np.array([os.getpid() * 2654435761 % 2**61 ^ host.rank], np.int64)
    found = host.allgather((os.getpid(), token.ctypes.data, int(token[0])))
    seen = np.zeros(1, np.int64)

    def reads(process: int, address: int, value: int) -> bool:
        try:
            read_memory(process, address, seen)
        except (CollectiveError, AttributeError):
            return False
        return int(seen[0]) == value

    everywhere = all(host.allgather(all(reads(*each) for each in found)))
    return [process for process, _, _ in found] if everywhere else []
