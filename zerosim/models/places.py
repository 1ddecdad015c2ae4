"""Every place of a split model in one process: the groups of its tape's collectives, which add in the declared order.

The places run side by side, one thread each. A collective waits until all places have given their arrays; each place
then computes its result from them, without messages. All places run the same operations, so one barrier serves every
direction. Sums are added in the order of the ring, as on ranks.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from zerosim.core.allocation import Array
from zerosim.core.errors import UsageError
from zerosim.core.orders import ring
from zerosim.core.sharding import Directions, bounds
from zerosim.models.units import Unit

Item = TypeVar("Item")
SECONDS = 60.0
"""The longest wait of a place for the others in a collective."""


def joined(whole: Unit, piece: Unit, flats: Sequence[Array], directions: Directions) -> Array:
    """A unit of the model in one piece, from that of every place.

    >>> from zerosim.autograd.tape_collectives import Direction
    >>> from zerosim.models.mlp import mlp
    >>> from zerosim.models.parallel import ModelParallel
    >>> def model(size):
    ...     parallel = ModelParallel(tensor=Direction("tensor", size))
    ...     return mlp(2, [2], 1, "relu", "mean_squared_error", parallel=parallel).units[0]
    >>> joined(model(1), model(2), [np.array([1.0, 2.0, 5.0]), np.array([3.0, 4.0, 6.0])], Directions(tensor=2))
    array([1., 2., 3., 4., 5., 6.])
    """
    joint = np.empty(whole.count, flats[0].dtype)
    views = whole.views(joint)
    for number, flat in enumerate(flats):
        for place, part in zip(piece.places, piece.views(flat).values(), strict=True):
            place.parameter.join(views[place.name], part, directions.coordinates(number))
    return joint


@dataclass(frozen=True)
class GroupInOneProcess:
    """The group of one place in one direction: `members` are its places."""

    barrier: threading.Barrier
    """Where all places meet."""
    given: list[Any]
    """The arrays that all places have given to the collective that they perform now, copies."""
    members: list[int]
    here: int

    @property
    def size(self) -> int:
        return len(self.members)

    @property
    def place(self) -> int:
        return self.members.index(self.here)

    def _gathered(self, flat: Array) -> list[Array]:
        self.given[self.here] = flat.copy()
        self.barrier.wait(SECONDS)
        arrays = [self.given[member] for member in self.members]
        self.barrier.wait(SECONDS)
        return arrays

    def all_reduce(self, flat: Array) -> None:
        parts = self._gathered(flat)
        for chunk, (start, stop) in enumerate(bounds(len(flat), self.size)):
            flat[start:stop] = ring([part[start:stop] for part in parts], chunk)

    reduce_scatter = all_reduce

    def all_gather(self, flat: Array) -> None:
        for part, (start, stop) in zip(self._gathered(flat), bounds(len(flat), self.size), strict=True):
            flat[start:stop] = part[start:stop]

    def all_to_all(self, flat: Array) -> None:
        own = slice(*bounds(len(flat), self.size)[self.place])
        for part, (start, stop) in zip(self._gathered(flat), bounds(len(flat), self.size), strict=True):
            flat[start:stop] = part[own]

    def shift(self, flat: Array, by: int) -> None:
        flat[...] = self._gathered(flat)[(self.place - by) % self.size]


def side_by_side(
    directions: Directions, program: Callable[[int, dict[str, GroupInOneProcess]], Iterator[Item]]
) -> Iterator[tuple[Item, ...]]:
    """The next item of `program(place, groups)` of every place, again and again; the places wait until it was used.

    An error of a place is raised here, and ends the others.

    >>> def program(place, groups):
    ...     total = np.array([10.0 ** place])
    ...     groups["tensor"].all_reduce(total)
    ...     yield float(total[0])
    >>> next(side_by_side(Directions(tensor=2), program))
    (11.0, 11.0)
    """
    places, ended = directions.places, object()
    barrier, given = threading.Barrier(places), [None] * places
    programs = [
        program(place, {name: GroupInOneProcess(barrier, given, directions.group(name, place), place)
                        for name in directions.groups})
        for place in range(places)]

    def advance(place: int) -> Any:
        try:
            with np.errstate(all="ignore"):
                return next(programs[place], ended)
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(places) as threads:
        while True:
            pending = [threads.submit(advance, place) for place in range(places)]
            errors = {place: error for place, result in enumerate(pending) if (error := result.exception())}
            for error in errors.values():
                if not isinstance(error, threading.BrokenBarrierError):
                    raise error
            if errors:
                raise UsageError(
                    f"in one process, place {min(errors)} has waited {SECONDS:g} s in a collective of the model for "
                    "the other places; let every place make the same calls in the same order")
            items = tuple(result.result() for result in pending)
            if items[0] is ended:
                return
            yield items
