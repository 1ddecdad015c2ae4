"""Cutting a flat vector into one chunk for each rank: arithmetic only, the same in every stage and world.

    chunk length   L = ceil(count / size)
    chunk c        elements c·L up to (c + 1)·L, clipped to count: the last chunks may be shorter, or empty
    padded         L · size: with padding all chunks are equal

Every figure and every order of addition in zerosim refers to this one map from element to chunk.
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar


class Sliceable(Protocol):
    """What `split` cuts: anything flat with a length and slices (an array, a list, a shape)."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: slice, /) -> "Sliceable": ...


Flat = TypeVar("Flat", bound=Sliceable)


def chunk_length(count: int, size: int) -> int:
    """ceil(count / size), in elements.

    >>> chunk_length(10, 4)
    3
    """
    return -(-count // size)


def padded(count: int, size: int) -> int:
    """`count` rounded up to a multiple of `size`, in elements.

    >>> padded(10, 4)
    12
    """
    return chunk_length(count, size) * size


def bounds(count: int, size: int) -> list[tuple[int, int]]:
    """The first element of each chunk and the one after its last.

    >>> bounds(4, 3)
    [(0, 2), (2, 4), (4, 4)]
    """
    length = chunk_length(count, size)
    return [(min(c * length, count), min((c + 1) * length, count)) for c in range(size)]


def split(flat: Flat, size: int) -> Sequence[Flat]:
    """One slice of `flat` for each of `size` ranks; slices of an array are views, so writing them writes `flat`.

    >>> split([10, 11, 12, 13], 3)
    [[10, 11], [12, 13], []]
    """
    return [flat[start:stop] for start, stop in bounds(len(flat), size)]  # type: ignore[misc]
