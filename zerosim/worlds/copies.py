"""Messages as bytes: memory for copies that is reused, views of arrays as bytes, and the tags of dtypes."""

import zlib
from collections import defaultdict
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from zerosim.core.allocation import Allocator, Array, allocate

Bytes = npt.NDArray[np.uint8]
CLOSE_NOTIFY = 0x7FFF
"""The tag of the last message between two ranks; the largest that every MPI library has."""


class Copies:
    """Memory for copies of messages, kept for reuse by size: the page faults of fresh memory cost more than a message.

    Sizes are rounded up by a quarter at most, so that messages of similar length share it.

    >>> copies = Copies()
    >>> memory = copies.take(100)
    >>> copies.give(memory)
    >>> memory.nbytes, copies.take(97) is memory
    (112, True)
    """

    def __init__(self, allocate: Allocator = allocate) -> None:
        self.allocate = allocate
        self._free: defaultdict[int, list[Bytes]] = defaultdict(list)

    def take(self, needed_bytes: int) -> Bytes:
        """Memory of at least `needed_bytes` bytes."""
        grain = 1 << max(needed_bytes.bit_length() - 3, 0)
        capacity = -(-needed_bytes // grain) * grain
        free = self._free[capacity]
        return free.pop() if free else self.allocate(capacity, np.uint8, kind="buffers", owner="messages")

    def give(self, memory: Bytes) -> None:
        """Return memory for reuse."""
        self._free[memory.nbytes].append(memory)


def shaped(memory: Bytes, like: Array) -> Array:
    """The first bytes of `memory` as an array with the shape and dtype of `like`."""
    return memory[: like.nbytes].view(like.dtype).reshape(like.shape)


@cache
def dtype_tag(dtype: np.dtype[Any]) -> int:
    """The tag of messages of this dtype, the same in every process; two dtypes nearly never share one."""
    return zlib.crc32(str(dtype if dtype.fields is None else dtype.descr).encode()) % CLOSE_NOTIFY
