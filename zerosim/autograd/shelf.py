"""The shelf: the inputs of units that will be recomputed, on the device or on the host.

    segment  the number of a segment of a unit in forward; backward needs segments last first
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from zerosim.autograd.operation import Shape
from zerosim.autograd.tape_collectives import TapeGroup
from zerosim.core.allocation import Allocator, Array
from zerosim.core.sharding import chunk_length, split


class Shelf(Protocol):
    """Arrays by the number of a segment; each is put once and taken once."""

    def put(self, segment: int, owner: str, arrays: Sequence[Array]) -> None:
        """Keep `arrays`, one for each micro-batch, of unit `owner`."""

    def take(self, segment: int) -> Sequence[Array]:
        """The arrays of this segment."""


class InMemory:
    """Holds the arrays themselves.

    >>> import numpy as np
    >>> shelf, x = InMemory(), np.ones(3)
    >>> shelf.put(0, "layers.1", [x])
    >>> shelf.take(0)[0] is x
    True
    """

    def __init__(self) -> None:
        self._arrays: dict[int, Sequence[Array]] = {}

    def put(self, segment: int, owner: str, arrays: Sequence[Array]) -> None:
        self._arrays[segment] = arrays

    def take(self, segment: int) -> Sequence[Array]:
        return self._arrays.pop(segment)


class Offloaded:
    """Keeps copies on the host, and brings them back to fresh memory of `near`.

    `carry(what, owner, into, source)` copies. Arrays are C-contiguous, so that restored arrays have the same layout and
    give the same bits.
    """

    def __init__(
        self, near: Allocator, far: Allocator, carry: Callable[[str, str, Array, Array], None]
    ) -> None:
        self._near, self._far, self._carry = near, far, carry
        self._copies: dict[int, list[tuple[str, Array]]] = {}

    def put(self, segment: int, owner: str, arrays: Sequence[Array]) -> None:
        self._copies[segment] = [
            (owner, self._copied(self._far, "device to host", owner, each)) for each in arrays]

    def take(self, segment: int) -> Sequence[Array]:
        return [self._copied(self._near, "host to device", *each) for each in self._copies.pop(segment)]

    def _copied(self, room: Allocator, way: str, owner: str, array: Array) -> Array:
        copy = room(array.shape, array.dtype, kind="activations", owner=owner)
        self._carry(f"activations, {way}", owner, copy, array)
        return copy


class Partitioned:
    """Keeps this rank's piece of each array on another shelf, and all-gathers it for use: P_a.

    All ranks of the group have put the same arrays. Their pieces are equally long, the last ones padded. Source:
    Rajbhandari et al., "ZeRO" (2020), section 6.1.

    >>> import numpy as np
    >>> from zerosim.core.allocation import allocate
    >>> from zerosim.autograd.tape_collectives import Direction
    >>> shelf = Partitioned(InMemory(), Direction("tensor"), allocate)
    >>> shelf.put(0, "layers.1", [np.ones((2, 2))])
    >>> shelf.take(0)
    [array([[1., 1.],
           [1., 1.]])]
    """

    def __init__(self, shelf: Shelf, group: TapeGroup, allocate: Allocator) -> None:
        self._shelf, self._group, self._allocate = shelf, group, allocate
        self._wholes: dict[int, list[tuple[Shape, str]]] = {}

    def put(self, segment: int, owner: str, arrays: Sequence[Array]) -> None:
        self._wholes[segment] = [(array.shape, owner) for array in arrays]
        self._shelf.put(segment, owner, [self._piece(owner, array.reshape(-1)) for array in arrays])

    def _piece(self, owner: str, flat: Array) -> Array:
        length = chunk_length(len(flat), self._group.size)
        piece, mine = self._allocate(length, flat.dtype, kind="activations", owner=owner), self._mine(flat)
        piece[: len(mine)] = mine
        piece[len(mine) :] = 0
        return piece

    def _mine(self, flat: Array) -> Array:
        found: Array = split(flat, self._group.size)[self._group.place]
        return found

    def take(self, segment: int) -> Sequence[Array]:
        pieces = self._shelf.take(segment)
        return [self._whole(*each, piece) for each, piece in zip(self._wholes.pop(segment), pieces, strict=True)]

    def _whole(self, shape: Shape, owner: str, piece: Array) -> Array:
        whole = self._allocate(shape, piece.dtype, kind="activations", owner=owner)
        mine = self._mine(whole.reshape(-1))
        mine[...] = piece[: len(mine)]
        self._group.all_gather(whole.reshape(-1))
        return whole
