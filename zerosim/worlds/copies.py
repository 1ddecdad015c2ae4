"""Reused memory for messages: the page faults of fresh memory cost more than the message itself.

Also messages as a box holds them: a word before each, and what of it waits in the sender's memory.
"""

from collections import defaultdict

import numpy as np
import numpy.typing as npt

from zerosim.allocation import Allocator, Array, allocate

Bytes = npt.NDArray[np.uint8]
LENT = 1 << 15
"""A bit of the header of a message that the receiver reads from the sender's memory, at the address that follows."""
HEADER = 1 << 16
"""A bit that is set in every header, so that none is 0; the tag is below it, the length above."""
COUNT_FROM = 17


class Copies:
    """Free memory by size. Sizes are rounded up by a quarter at most, so that messages of similar length share it.

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
        if free:
            return free.pop()
        return self.allocate(capacity, np.uint8, kind="buffers", owner="messages")

    def give(self, memory: Bytes) -> None:
        """Return memory for reuse."""
        self._free[memory.nbytes].append(memory)


def shaped(memory: Bytes, like: Array) -> Array:
    """The first bytes of `memory` as an array with the shape and dtype of `like`."""
    return memory[: like.nbytes].view(like.dtype).reshape(like.shape)


class Parcel:
    """A message with unwritten bytes: `source` from byte `at` on, in the caller's array or in `memory` from `copies`.
    """

    def __init__(self, source: Bytes, tag: int) -> None:
        self.source, self.tag, self.total_bytes = source, tag, len(source)
        self.at, self.headed = 0, False
        self.end = 0
        """The position behind a lent message that the receiver has been told of; else 0."""
        self.memory: Bytes | None = None
        self.copies: Copies | None = None

    def keep(self, copies: Copies) -> None:
        """Copy the unwritten bytes."""
        left = len(self.source) - self.at
        self.copies, self.memory = copies, copies.take(left)
        self.memory[:left] = self.source[self.at :]
        self.source, self.at = self.memory[:left], 0

    def give_back(self) -> None:
        """Return the memory of the copy for reuse."""
        if self.copies is not None and self.memory is not None:
            self.copies.give(self.memory)


def header(count: int, tag: int) -> int:
    """The header of a message of `count` bytes.

    >>> read_header(header(0, 7)), read_header(header(1 << 40, 0x7FFF)) == (1 << 40, 0x7FFF)
    ((0, 7), True)
    """
    return count << COUNT_FROM | HEADER | tag


def read_header(found: int) -> tuple[int, int]:
    """The length and the tag of a message, by its header."""
    return found >> COUNT_FROM, found & LENT - 1
