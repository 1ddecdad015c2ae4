"""The first differing bytes of a row, and why two rows differ although each equals its own reference.

Both are found by running references again: that of the row, or those of both rows side by side. Two rows that differ
are compared after each step, gradients before weights, so the first difference is the cause of all later ones.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from zerosim.core.allocation import Array
from zerosim.core.comm import Communicator
from zerosim.core.sharding import Mesh, chunk_length, split
from zerosim.core.terms import Symbol, symbols
from zerosim.core.words import plural
from zerosim.models.parameters import ORIGIN, Coordinates
from zerosim.models.units import Unit
from zerosim.stages.adding import Addition, add_replicas
from zerosim.stages.storage import WEIGHTS
from zerosim.training.build import alone
from zerosim.training.comparison import Evidence, comparable_chunks, published, states
from zerosim.training.config import Config
from zerosim.training.experiment import Experiment
from zerosim.training.reference import Snapshot
from zerosim.worlds.local import spawn


@dataclass(frozen=True)
class Divergence:
    """The first differing bytes of a row."""

    step: int
    layer: int | None
    """the step, 0 before the first; the layer, `null` for a loss"""
    parameter: str
    name: str
    """such as `weight` and `layers.0.weight`; or `loss`; or `padding`, after the last parameter of a unit"""
    index: tuple[int, ...]
    ours: float
    reference: float
    ours_bits: str
    reference_bits: str
    ulps: int | None
    """the index; both values; their bytes in hexadecimal; their distance in ULPs, `null` for a NaN, 0 for −0 and +0"""
    rank: int
    """the rank that found the difference"""
    state: str | None
    """the optimizer's slot, `gradient`, or `accumulated gradient` (its float32 sum); `null` for a weight or a loss"""
    differing_elements: int
    chunk: int
    """the chunk of the unit, and the number of its elements that differ"""
    order_of_addition: dict[str, str] | None = None
    """the order of that chunk: `ours`, recorded on symbols, and `reference`, as declared"""

    @property
    def words(self) -> str:
        """The place of the first difference, both values, and their distance, in a line."""
        apart = "not comparable in ULPs" if self.ulps is None else f"{self.ulps} ULP apart"
        return (
            f"after step {self.step}, rank {self.rank} holds {place_in_words(self.state, self.name, self.index)} = "
            f"{value_in_words(self.ours, self.ours_bits)}, "
            f"one process {value_in_words(self.reference, self.reference_bits)} ({apart}; chunk {self.chunk})")


def place_in_words(state: str | None, name: str, index: tuple[int, ...]) -> str:
    """An element: its state, if it is not a weight, and its index in the parameter."""
    place = f"{name}[{', '.join(map(str, index))}]" if index else name
    return f"{state} of {place}" if state else place


def value_in_words(number: float, bits: str) -> str:
    """A number, with its bits if these are not unique.

    >>> value_in_words(0.5, "0x3f000000"), value_in_words(-0.0, "0x80000000"), value_in_words(math.nan, "0x7fc00001")
    ('0.5', '-0.0 (0x80000000)', 'nan (0x7fc00001)')
    """
    return f"{number!r} ({bits})" if number == 0 or math.isnan(number) else f"{number!r}"


def first_divergence(
    comm: Communicator, experiment: Experiment, config: Config, evidence: Evidence | None
) -> Divergence | None:
    """The first element of `evidence`, which rank 0 has; on all ranks, with a message for every replayed step."""
    replayed = list(published(comm, replay(experiment, config, evidence) if comm.rank == 0 else None))
    return replayed[-1] if replayed else None


def replay(experiment: Experiment, config: Config, evidence: Evidence | None) -> Iterator[int | Divergence]:
    """Run the reference up to the step of `evidence`; yields a number for each step, the divergence last."""
    if evidence is None:
        return
    for snapshots in alone(experiment, config):
        snapshot = snapshots[config.directions.place(evidence.rank) % len(snapshots)]
        if snapshot.step == evidence.step:
            yield locate(config, evidence, snapshot)
            return
        yield snapshot.step


def orders_of_addition(config: Config, chunk: int) -> dict[str, str]:
    """The order in which the stage adds `chunk`, computed on symbols, and the declared order."""
    declared = declared_order(config, chunk)
    ours = declared if config.arithmetic.order.within is None else str(
        chunk_sums(config.addition, config.placement.mesh, config.block // config.reductions)[chunk])
    return {"ours": ours, "reference": declared}


def declared_order(config: Config, chunk: int) -> str:
    """The sum of micro-batches g0, g1, … in `chunk` as the order declares it; words for an order-free sum."""
    mesh, order = config.placement.mesh, config.arithmetic.order
    if order.within is None:
        return order.words
    count = mesh.size * (config.block // config.reductions)
    return str(order.total([symbols(number, mesh.size) for number in range(count)], mesh)[chunk])


def locate(config: Config, evidence: Evidence, snapshot: Snapshot) -> Divergence:
    """The first element in which `evidence` differs from the reference's snapshot of the same step on that place."""
    what, ours, theirs, chunks = evidence.what, evidence.values, snapshot.loss, config.directions.data
    unit = None if evidence.unit is None else config.model.units[evidence.unit]
    if unit is not None:
        theirs = comparable_chunks(what, states(snapshot, unit)[what], chunks)[evidence.chunk]
    differs = np.flatnonzero(bit_pattern(ours) != bit_pattern(theirs))
    first = int(differs[0])
    layer, parameter, name, index = None, what, what, tuple[int, ...]()
    if unit is not None:
        coordinates = config.directions.coordinates(config.directions.place(evidence.rank))
        layer, parameter, name, index = element(
            unit, evidence.chunk * chunk_length(unit.count, chunks) + first, coordinates)
    return Divergence(
        step=evidence.step, layer=layer, parameter=parameter, name=name, index=index, ours=float(ours[first]),
        reference=float(theirs[first]), ours_bits=hexadecimal(ours[first]), reference_bits=hexadecimal(theirs[first]),
        ulps=ulps_apart(ours[first], theirs[first]), rank=evidence.rank,
        state=None if what == WEIGHTS or unit is None else what, differing_elements=len(differs), chunk=evidence.chunk)


def element(
    unit: Unit, offset: int, coordinates: Coordinates = ORIGIN
) -> tuple[int, str, str, tuple[int, ...]]:
    """Layer, parameter, full name and index in the whole of an element of a place's flat buffer, or of its padding."""
    for place in unit.places:
        if place.start <= offset < place.stop:
            index = place.parameter.index(offset - place.start, coordinates)
            return place.layer, place.parameter.name, place.name, index
    return unit.numbers[-1], "padding", f"{unit.layers[-1].prefix}padding", (offset - unit.count,)


def bit_pattern(values: Array) -> Array:
    """The bytes of values as unsigned integers.

    >>> bit_pattern(np.array([0.0, -0.0], np.float32)).tolist()
    [0, 2147483648]
    """
    return np.atleast_1d(values).view(f"u{values.dtype.itemsize}")


def hexadecimal(value: Any) -> str:
    """The bits of one number.

    >>> hexadecimal(np.float32(-0.0))
    '0x80000000'
    """
    return f"0x{int(bit_pattern(np.asarray(value))[0]):0{2 * value.dtype.itemsize}x}"


def ulps_apart(ours: Any, reference: Any) -> int | None:
    """The distance of two floats of one dtype, in representable numbers.

    0 for −0 and +0, which are different bytes for the same number; None when either is NaN.

    >>> ulps_apart(np.float32(1.0), np.nextafter(np.float32(1.0), np.float32(2.0)))
    1
    """
    if np.isnan(ours) or np.isnan(reference):
        return None
    return abs(number_line(ours) - number_line(reference))


def number_line(value: Any) -> int:
    """The position of a float among all of its dtype: 0 for ±0, and neighbours are one apart; a NaN's is far.

    >>> [number_line(value) for value in np.array([0.0, -0.0, 1e-45, -1e-45], np.float32)]
    [0, 0, 1, -1]
    """
    bits, sign = int(bit_pattern(np.asarray(value))[0]), 1 << (8 * value.dtype.itemsize - 1)
    return sign - bits if bits & sign else bits


def chunk_sums(addition: Addition, mesh: Mesh, block: int) -> list[Symbol]:
    """The sum of all micro-batches in chunk c, for every c, if each rank of a mesh contributes a block of them.

    >>> from zerosim.stages.adding import ADDITIONS
    >>> chunk_sums(ADDITIONS["ring"], Mesh(rank=0, size=2, group=2), block=2)
    [((g2 + g3) + (g0 + g1)), ((g0 + g1) + (g2 + g3))]
    >>> chunk_sums(ADDITIONS["ring"], Mesh(rank=0, size=4, group=2), block=1)[:2]
    [((g3 + g2) + (g1 + g0)), ((g1 + g0) + (g3 + g2))]
    """
    assert addition.collective is not None
    add_up = add_replicas(addition.collective)

    def program(comm: Communicator) -> list[Symbol]:
        own_mesh, total = replace(mesh, rank=comm.rank), None
        for number in range(comm.rank * block, (comm.rank + 1) * block):
            total = addition.accumulate(total, symbols(number, comm.size))
        full = addition.reduce_scatter(own_mesh.within(comm), total, lambda full: full)
        own = split(full, own_mesh.group)[own_mesh.place]
        if own_mesh.replicas > 1:
            add_up(own_mesh.across(comm), own)
        return list(own)

    pieces = spawn(program, mesh.size)
    return [piece for rank in mesh.groups[0] for piece in pieces[rank]]


@dataclass(frozen=True)
class RowDifference:
    """Why a row that equals one process differs from the first row, which does too: two single processes train side by
    side, one in each row's order.
    """

    first: str
    other: str
    step: int
    """the names of the rows; the first step with a difference"""
    what: str
    name: str
    index: tuple[int, ...]
    """`gradient`, or `weights` if gradients are equal; the first differing element"""
    values: tuple[float, float]
    ulps: int
    chunks: tuple[int, int]
    orders: tuple[str, str]
    """in each row its value, chunk and sum; the distance of the values in ULPs"""
    elements: int
    differing: int
    """the numbers of all elements and of those that differ"""

    @property
    def lines(self) -> list[str]:
        """That two rows differ, the place of the first difference, and a line for the order of each row."""
        one, other = self.values
        orders = [f"adds it in chunk {chunk}, {order}" for chunk, order in zip(self.chunks, self.orders, strict=True)]
        return [
            f"{self.other} is not {self.first}, and each has the bits of one process. Reason:",
            f"They first differ in step {self.step}: the {place_in_words(self.what, self.name, self.index)} is {one!r} "
            f"in {self.first} and {other!r} in {self.other} ({plural(self.ulps, 'ULP')} apart). "
            f"{self.differing:,} of {self.elements:,} elements differ.",
            *([f"each of {self.first} and {self.other} {orders[0]}"] if len({*orders}) == 1 else
              [f"{name} {order}" for name, order in zip((self.first, self.other), orders, strict=True)])]


def row_differences(
    comm: Communicator, experiment: Experiment, pairs: Sequence[tuple[Config, Config]] | None
) -> list[RowDifference]:
    """The differences of `pairs`, which rank 0 has; on all ranks, which receive a message for every replayed step."""
    trained = None if pairs is None else chain.from_iterable(side_by_side(experiment, *pair) for pair in pairs)
    return [difference for difference in published(comm, trained) if isinstance(difference, RowDifference)]


def side_by_side(experiment: Experiment, first: Config, other: Config) -> Iterator[int | RowDifference]:
    """Train two rows' references; yields a number for each step, and the first difference, if any, at the end."""
    for (ours, *_), (theirs, *_) in zip(alone(experiment, first), alone(experiment, other), strict=False):
        for what in ("gradient", "weights"):
            difference = compared(what, first, ours, other, theirs)
            if difference is not None:
                yield difference
                return
        yield ours.step


def compared(what: str, one: Config, ours: Snapshot, two: Config, theirs: Snapshot) -> RowDifference | None:
    """The first difference between two snapshots of one step, or None."""
    layers, others = layers_of(what, one, ours), layers_of(what, two, theirs)
    differs = {number: np.flatnonzero(bit_pattern(values) != bit_pattern(others[number][1]))
               for number, (_, values) in sorted(layers.items())}
    number = next((number for number, places in differs.items() if len(places)), None)
    if number is None:
        return None
    at, values = int(differs[number][0]), [side[number][1] for side in (layers, others)]
    places = [side[number][0].bounds(number)[0] + at for side in (layers, others)]
    chunks = [place // chunk_length(side[number][0].count, config.directions.data)
              for place, side, config in zip(places, (layers, others), (one, two), strict=True)]
    _, _, name, index = element(layers[number][0], places[0])
    return RowDifference(
        first=one.name, other=two.name, step=ours.step, what=what, name=name, index=index,
        values=(float(values[0][at]), float(values[1][at])),
        ulps=abs(number_line(values[0][at]) - number_line(values[1][at])),
        chunks=(chunks[0], chunks[1]), orders=(order(one, chunks[0]), order(two, chunks[1])),
        elements=sum(len(flat) for _, flat in layers.values()), differing=sum(map(len, differs.values())))


def layers_of(what: str, config: Config, snapshot: Snapshot) -> dict[int, tuple[Unit, Array]]:
    """The layers with this kind of array, each with its unit and its elements, for any grouping of layers."""
    flats = {unit: total.used for unit, total in snapshot.gradients.items()} if what == "gradient" else snapshot.weights
    return {number: (unit, flats[unit][slice(*unit.bounds(number))])
            for unit in config.model.units if unit in flats for number in unit.numbers}


def order(config: Config, chunk: int) -> str:
    """The order in which a row adds one chunk, in words."""
    rounded, sent = config.arithmetic, config.parallel.quantized_gradients
    again = f", {config.reductions} times, and these sums left to right" if rounded.part_by_part else ""
    codes = f", sent as {sent}" if sent != "none" else ""
    cast = "" if rounded.compute == config.precision.weights else f", of gradients computed in {rounded.compute}"
    cast += f", of products in {rounded.products}" if rounded.products != rounded.compute else ""
    return (f"{declared_order(config, chunk)}{again}, in {rounded.wire} over ranks and {rounded.accumulate} over "
            f"micro-batches{cast}{codes}")
