"""Why two rows differ although each equals its own reference: found by training both references side by side.

    apart      two rows with different weights, each of which equals one process that adds in its order
    moved      elements that lie in different chunks in the two rows
    first      the first step with a difference, and in it the gradients: before it all was equal
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from zerosim.allocation import Array
from zerosim.comm import Communicator
from zerosim.models.units import Model, Unit
from zerosim.reference import Snapshot
from zerosim.sharding import chunk_length
from zerosim.training.batches import Batches
from zerosim.training.build import alone
from zerosim.training.comparison import published
from zerosim.training.config import Config
from zerosim.verdict.diagnosis import bit_pattern, element, full_name, number_line, orders_of_addition

EDGES = (1, 2, 4, 16, 256)
"""The most ULPs in each bin of the histogram; a last bin has the larger distances."""
LATER = ", applied one step later"


@dataclass(frozen=True)
class RowDifference:
    """The first difference of `other` from `first`, which are names of rows, and its cause."""

    first: str
    other: str
    step: int
    what: str
    """"gradient", or "weights" if gradients are equal."""
    name: str
    index: tuple[int, ...]
    values: tuple[float, float]
    ulps: int
    chunks: tuple[int, int]
    """The chunk of that element, in each row."""
    orders: tuple[str, str]
    """The order in which each row adds the element, as sums."""
    elements: int
    differing: int
    moved: int
    """The number of elements that lie in another chunk."""
    moved_and_differing: int
    histogram: dict[str, int]
    """The number of differing elements, by ULPs."""

    @property
    def cause(self) -> str:
        """The cause, in words."""
        if self.moved and self.differing == self.moved_and_differing:
            return (f"{self.moved:,} of {self.elements:,} elements ({self.moved / self.elements:.1%}) lie in another "
                    f"chunk, and are added in a different order; {self.differing:,} of these differ, and none of the "
                    "rest")
        late = [order.endswith(LATER) for order in self.orders]
        if late[0] != late[1]:
            whose = self.first if late[0] else self.other
            return (f"{whose} applies each update one step later: {self.differing:,} of {self.elements:,} elements "
                    "differ")
        first, other = (order.partition(", in ")[0] for order in self.orders)
        if first != other:
            return (f"the rows add in different orders: {self.differing:,} of {self.elements:,} elements differ, "
                    f"{self.moved:,} lie in another chunk")
        return (f"the rows add in the same order but round at different places: {self.differing:,} of "
                f"{self.elements:,} elements differ")


def row_differences(
    comm: Communicator, pairs: Sequence[tuple[Batches, Batches]] | None
) -> list[RowDifference]:
    """The differences of `pairs`, which rank 0 has; on all ranks, which receive a message for every replayed step."""
    found = published(comm, steps_of_all(pairs) if pairs is not None else None)
    return [each for each in found if isinstance(each, RowDifference)]


def steps_of_all(pairs: Sequence[tuple[Batches, Batches]]) -> Iterator[int | RowDifference]:
    for first, other in pairs:
        yield from side_by_side(first, other)


def side_by_side(first: Batches, other: Batches) -> Iterator[int | RowDifference]:
    """Train two rows' references; yields a number for each step, and the first difference, if any, at the end."""
    for (one, mine), (two, theirs) in zip(each_step(first), each_step(other), strict=False):
        for what in ("gradient", "weights"):
            found = compared(what, one, mine, two, theirs)
            if found is not None:
                yield found
                return
        yield mine.step


def each_step(batches: Batches) -> Iterator[tuple[Config, Snapshot]]:
    """One snapshot of every step: if a leg ends and another begins there, that of the first."""
    for _, found in groupby(alone(batches), key=lambda each: each[1][0].step):
        leg, (snapshot, *_) = next(found)
        yield leg, snapshot


def compared(what: str, one: Config, mine: Snapshot, two: Config, theirs: Snapshot) -> RowDifference | None:
    """The first difference between two snapshots of one step, or None."""
    ours, others = (flat(what, config.model, snapshot) for config, snapshot in ((one, mine), (two, theirs)))
    differs = bit_pattern(ours) != bit_pattern(others) if len(ours) else np.zeros(0, bool)
    if not differs.any():
        return None
    at = int(np.flatnonzero(differs)[0])
    chunks = chunks_of(what, one, mine), chunks_of(what, two, theirs)
    unit, offset = place_of(what, one.model, mine, at)
    layer, parameter, index = element(unit, offset)
    distances = ulps(ours[differs], others[differs])
    moved = chunks[0] != chunks[1]
    return RowDifference(
        one.name, two.name, mine.step, what, full_name(unit, layer, parameter), index,
        (float(ours[at]), float(others[at])), int(distances[0]), (int(chunks[0][at]), int(chunks[1][at])),
        (order(one, int(chunks[0][at])), order(two, int(chunks[1][at]))),
        len(ours), int(differs.sum()), int(moved.sum()), int((moved & differs).sum()), histogram(distances),
    )


def order(config: Config, chunk: int) -> str:
    """The order in which a row adds one chunk, in words."""
    added = orders_of_addition(config, chunk)["reference"]
    again = f", {config.reductions} times, and these sums left to right" if config.part_by_part else ""
    sent = config.row.parallel.quantized_gradients
    codes = f", sent as {sent}" if sent != "none" else ""
    codes += " with error feedback" if config.row.parallel.error_feedback else ""
    cast = "" if config.computing is config.precision else f", of gradients computed in {config.computing.weights}"
    cast += f", of products in {config.autocast.weights}" if config.autocast else ""
    later = LATER if config.row.parallel.delayed_update else ""
    return f"{added}{again}, in {config.wire} over ranks and {config.summed} over micro-batches{cast}{codes}{later}"


def layers_of(what: str, model: Model, snapshot: Snapshot) -> list[tuple[int, Unit]]:
    """The layers with this kind of array, each with its unit, in model order."""
    held = snapshot.gradients if what == "gradient" else snapshot.weights
    return sorted(((number, unit) for unit in model.units if unit in held for number in unit.numbers),
                  key=lambda pair: pair[0])


def flat(what: str, model: Model, snapshot: Snapshot) -> Array:
    """All elements in model order, for any grouping of layers into units."""
    parts = [
        (snapshot.gradients[unit].used if what == "gradient" else snapshot.weights[unit])[slice(*unit.bounds(number))]
        for number, unit in layers_of(what, model, snapshot)
    ]
    return np.concatenate(parts) if parts else np.zeros(0, np.float32)


def chunks_of(what: str, config: Config, snapshot: Snapshot) -> Array:
    """The number of the chunk of each of these elements."""
    return np.concatenate([
        np.arange(*unit.bounds(number)) // chunk_length(unit.count, config.ranks)
        for number, unit in layers_of(what, config.model, snapshot)
    ])


def place_of(what: str, model: Model, snapshot: Snapshot, at: int) -> tuple[Unit, int]:
    """The unit of one of these elements, and its position in the unit."""
    for number, unit in layers_of(what, model, snapshot):
        start, stop = unit.bounds(number)
        if at < stop - start:
            return unit, start + at
        at -= stop - start
    raise IndexError(at)


def ulps(ours: Array, others: Array) -> Array:
    """The distances of two arrays' elements, in representable numbers; a NaN is far from all others.

    >>> ulps(np.float32([1, -0.0, 0]), np.float32([1.0000001, 0, 1e-45])).tolist()
    [1, 0, 1]
    >>> ulps(np.array([-2.0]), np.array([2.0])).tolist()
    [9223372036854775808]
    """
    mine, theirs = number_line(ours), number_line(others)
    found: Array = np.where(mine > theirs, mine - theirs, theirs - mine).view(np.uint64)  # up to 2⁶⁴
    return found


def histogram(distances: Array) -> dict[str, int]:
    """The number of elements in each bin of ULPs.

    >>> histogram(np.array([1, 1, 2, 3, 300]))
    {'1': 2, '2': 1, '3–4': 1, '5–16': 0, '17–256': 0, 'more': 1}
    """
    found, below = {}, 0
    for edge in EDGES:
        name = f"{edge}" if edge - below == 1 else f"{below + 1}–{edge}"
        found[name] = int(((distances > below) & (distances <= edge)).sum()) + int((distances == 0).sum()) * (edge == 1)
        below = edge
    return {**found, "more": int((distances > below).sum())}
