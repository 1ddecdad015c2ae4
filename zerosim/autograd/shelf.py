"""The shelf: where a tape leaves the inputs of units that will be recomputed, in memory or in a store outside of it.

    segment    the number of a segment of a unit in forward; backward takes segments last first
    store    has the bytes when they are not in memory, such as the file of an offloading rank

The order of use is known, so the next input is read ahead while backward computes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from zerosim.allocation import Allocator, Array
from zerosim.autograd.operation import Shape


class Shelf(Protocol):
    """Arrays by the number of a segment, each of which is put once and taken once."""

    @property
    def most_bytes(self) -> int:
        """The most bytes that were ever outside of memory."""

    def put(self, segment: int, owner: str, arrays: Sequence[Array]) -> None:
        """Keep `arrays`, one for each micro-batch, which belong to `owner`."""

    def begin(self, segment: int) -> None:
        """Begin to read what was put for this segment, if anything was."""

    def take(self, segment: int) -> Sequence[Array]:
        """The arrays that were put for this segment."""

    def close(self) -> None:
        """End the use of the shelf: nothing is put or taken afterwards."""


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
    """Bytes by their place, outside of the memory that a ledger knows."""

    def write(self, start: int, array: Array, /) -> None:
        """Copy an array to `start` and the places behind it; it may be let go of at once."""

    def read(self, start: int, array: Array, /) -> Callable[[], object]:
        """Begin to fill an array with what was written at `start`; what is returned waits until it is there."""

    def close(self) -> None:
        """Free everything."""


@dataclass(frozen=True)
class ShelvedArray:
    """The place of an array in a store, and its shape and dtype."""

    start: int
    shape: Shape
    dtype: np.dtype[Any]
    owner: str
    held_bytes: int

    @property
    def stop(self) -> int:
        return self.start + self.held_bytes


class Offloaded:
    """Leaves the bytes in a store and holds no array; what comes back is in fresh memory of `allocate`.

    Arrays are C-contiguous, so that what comes back is laid out as it was, and computed with to the same bits.
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
        """The end of everything that was not taken yet."""
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
