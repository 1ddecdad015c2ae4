"""Messages as a box holds them: a word before each, and what of it waits in the sender's memory."""

from zerosim.worlds.copies import Bytes, Copies

LENT = 1 << 15
"""A bit of the header of a message that the receiver reads from the sender's memory, at the address that follows."""
HEADER = 1 << 16
"""A bit that is set in every header, so that none is 0; the tag is below it, the length above."""
COUNT_FROM = 17


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
