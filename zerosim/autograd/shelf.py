"""The shelf: where a tape keeps the inputs of units that will be recomputed, on the device or on the host."""

from collections.abc import Callable, Sequence

from zerosim.autograd.operation import Shape
from zerosim.autograd.tape_collectives import TapeGroup
from zerosim.core.allocation import Allocator, Array
from zerosim.core.sharding import chunk_length, split

Taken = Callable[[], Sequence[Array]]
"""Gives the kept arrays back, once."""

Shelf = Callable[[str, Sequence[Array]], Taken]
"""`shelf(owner, arrays)` keeps the arrays of a unit, one for each micro-batch."""


def in_memory(owner: str, arrays: Sequence[Array]) -> Taken:
    """Keep the arrays themselves.

    >>> in_memory("layers.1", [1.0])()
    [1.0]
    """
    return lambda: arrays


def offloaded(near: Allocator, far: Allocator, carry: Callable[[str, str, Array, Array], None]) -> Shelf:
    """A shelf of copies on the host, in memory of `far`, which are brought back to fresh memory of `near`.

    `carry(what, owner, into, source)` copies. Arrays are C-contiguous, so that restored arrays have the same layout and
    give the same bits.
    """

    def copied(allocate: Allocator, way: str, owner: str, array: Array) -> Array:
        copy = allocate(array.shape, array.dtype, kind="activations", owner=owner)
        carry(f"activations, {way}", owner, copy, array)
        return copy

    def shelf(owner: str, arrays: Sequence[Array]) -> Taken:
        copies = [copied(far, "device to host", owner, array) for array in arrays]

        def taken() -> Sequence[Array]:
            return [copied(near, "host to device", owner, copies.pop(0)) for _ in range(len(copies))]

        return taken

    return shelf


def partitioned(shelf: Shelf, group: TapeGroup, allocate: Allocator) -> Shelf:
    """A shelf that keeps this rank's piece of each array on another shelf, and all-gathers it for use: P_a.

    All ranks of the group have kept the same arrays. Their pieces are equally long, the last ones padded. Source:
    Rajbhandari et al., "ZeRO" (2020), section 6.1.

    >>> import numpy as np
    >>> from zerosim.core.allocation import allocate
    >>> from zerosim.autograd.tape_collectives import Direction
    >>> partitioned(in_memory, Direction("tensor"), allocate)("layers.1", [np.ones((2, 2))])()
    [array([[1., 1.],
           [1., 1.]])]
    """

    def partition(owner: str, arrays: Sequence[Array]) -> Taken:
        shapes, pieces = [array.shape for array in arrays], []
        for array in arrays:
            part = own(array)
            piece = allocate(chunk_length(array.size, group.size), array.dtype, kind="activations", owner=owner)
            piece[: len(part)], piece[len(part) :] = part, 0
            pieces.append(piece)
        taken = shelf(owner, pieces)
        return lambda: [whole(owner, *kept) for kept in zip(shapes, taken(), strict=True)]

    def own(array: Array) -> Array:
        part: Array = split(array.reshape(-1), group.size)[group.place]
        return part

    def whole(owner: str, shape: Shape, piece: Array) -> Array:
        array = allocate(shape, piece.dtype, kind="activations", owner=owner)
        part = own(array)
        part[...] = piece[: len(part)]
        group.all_gather(array.reshape(-1))
        return array

    return partition
