"""The shelf: the inputs of units that will be recomputed, in memory or in a store outside of it.

    segment  the number of a segment of a unit in forward; backward needs segments last first
    store    holds the bytes outside of memory, such as the file of an offloading rank

The order of use is known, so the next input is read ahead while backward computes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from zerosim.allocation import Allocator, Array
from zerosim.autograd.operation import Shape
from zerosim.autograd.tape_collectives import TapeGroup
from zerosim.sharding import chunk_length, split


class Shelf(Protocol):
    """Arrays by the number of a segment; each is put once and taken once."""

    @property
    def most_bytes(self) -> int:
        """The peak of the bytes outside of memory."""

    def put(self, segment: int, owner: str, arrays: Sequence[Array]) -> None:
        """Keep `arrays`, one for each micro-batch, of unit `owner`."""

    def begin(self, segment: int) -> None:
        """Begin to read the arrays of this segment, if there are any."""

    def take(self, segment: int) -> Sequence[Array]:
        """The arrays of this segment."""

    def close(self) -> None:
        """Close the shelf: nothing is put or taken afterwards."""


class InMemory:
    """Holds the arrays themselves.

    >>> shelf, x = InMemory(), np.ones(3)
    >>> shelf.put(0, "layers.1", [x])
    >>> shelf.take(0)[0] is x
    True
    """

    most_bytes = 0

    def __init__(self) -> None:
        self._arrays: dict[int, Sequence[Array]] = {}

    def put(self, segment: int, owner: str, arrays: Sequence[Array]) -> None:
        self._arrays[segment] = arrays

    def begin(self, segment: int) -> None:
        """Do nothing: the arrays never left memory."""

    def take(self, segment: int) -> Sequence[Array]:
        return self._arrays.pop(segment)

    def close(self) -> None:
        """Do nothing: no file is open."""


class Store(Protocol):
    """Bytes by their position, outside of the memory that a ledger counts."""

    def write(self, start: int, array: Array, /) -> None:
        """Copy an array to position `start`; it may be freed at once."""

    def read(self, start: int, array: Array, /) -> Callable[[], object]:
        """Begin to fill an array with the bytes at `start`; the returned function waits until it is complete."""

    def close(self) -> None:
        """Free everything."""


@dataclass(frozen=True)
class ShelvedArray:
    """The position of an array in a store, and its shape and dtype."""

    start: int
    shape: Shape
    dtype: np.dtype[Any]
    owner: str
    held_bytes: int

    @property
    def stop(self) -> int:
        return self.start + self.held_bytes


class Offloaded:
    """Keeps the bytes in a store and holds no array; `take` returns arrays in fresh memory of `allocate`.

    Arrays are C-contiguous, so that restored arrays have the same layout and give the same bits.
    """

    def __init__(self, store: Store, allocate: Allocator) -> None:
        self.most_bytes = 0
        self._store = store
        self._allocate = allocate
        self._places: dict[int, list[ShelvedArray]] = {}
        self._coming: dict[int, list[tuple[Array, Callable[[], object]]]] = {}

    def put(self, segment: int, owner: str, arrays: Sequence[Array]) -> None:
        places = self._places[segment] = []
        for array in arrays:
            place = ShelvedArray(self._end(), array.shape, array.dtype, owner, array.nbytes)
            self._store.write(place.start, array)
            places.append(place)
        self.most_bytes = max(self.most_bytes, self._end())

    def _end(self) -> int:
        """The end of the arrays that have not been taken."""
        return max((place.stop for places in self._places.values() for place in places), default=0)

    def begin(self, segment: int) -> None:
        if segment in self._places and segment not in self._coming:
            self._coming[segment] = []
            for place in self._places[segment]:
                array = self._allocate(place.shape, place.dtype, kind="activations", owner=place.owner)
                self._coming[segment].append((array, self._store.read(place.start, array)))

    def take(self, segment: int) -> Sequence[Array]:
        self.begin(segment)
        arrays = []
        for array, wait in self._coming.pop(segment):
            wait()
            arrays.append(array)
        del self._places[segment]
        return arrays

    def close(self) -> None:
        self._coming.clear()
        self._store.close()


class Partitioned:
    """Keeps this rank's piece of each array on another shelf, and all-gathers it for use: P_a.

    All ranks of the group have put the same arrays. Their pieces are equally long, the last ones padded. Source:
    Rajbhandari et al., "ZeRO" (2020), section 6.1.

    >>> from zerosim.allocation import allocate
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

    @property
    def most_bytes(self) -> int:
        return self._shelf.most_bytes

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

    def begin(self, segment: int) -> None:
        self._shelf.begin(segment)

    def take(self, segment: int) -> Sequence[Array]:
        pieces = self._shelf.take(segment)
        return [self._whole(*each, piece) for each, piece in zip(self._wholes.pop(segment), pieces, strict=True)]

    def _whole(self, shape: Shape, owner: str, piece: Array) -> Array:
        whole = self._allocate(shape, piece.dtype, kind="activations", owner=owner)
        mine = self._mine(whole.reshape(-1))
        mine[...] = piece[: len(mine)]
        self._group.all_gather(whole.reshape(-1))
        return whole

    def close(self) -> None:
        self._shelf.close()
