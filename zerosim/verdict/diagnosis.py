"""The first differing bytes, and the orders in which they were added: found by running the reference again."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from zerosim.allocation import Array
from zerosim.comm import Communicator
from zerosim.models.parameters import ORIGIN, Coordinates
from zerosim.models.units import Unit
from zerosim.payloads.terms import Symbol, symbols
from zerosim.reference import Snapshot
from zerosim.sharding import Mesh, chunk_length, split
from zerosim.stages.adding import Addition, add_replicas
from zerosim.training.batches import Batches
from zerosim.training.build import alone
from zerosim.training.comparison import WEIGHTS, Evidence, comparable, published, states, with_padding
from zerosim.training.config import Config
from zerosim.worlds.local import spawn


@dataclass(frozen=True)
class Divergence:
    """The first element that differs: its place, both values, and their distance in ULPs."""

    step: int
    layer: int | None
    parameter: str
    """The name in its layer, `weight`; `name` is the full one."""
    name: str
    index: tuple[int, ...]
    ours: float
    reference: float
    ours_bits: str
    """Hexadecimal, as is `reference_bits`: it distinguishes NaNs, and −0 from 0."""
    reference_bits: str
    ulps: int | None
    rank: int
    state: str | None
    differing_elements: int
    chunk: int


def first_divergence(comm: Communicator, batches: Batches, evidence: Evidence | None) -> Divergence | None:
    """The first element of `evidence`, which rank 0 has; on all ranks, which receive a message for every replayed step.
    """
    replayed = list(published(comm, replay(batches, evidence) if comm.rank == 0 else None))
    return replayed[-1] if replayed else None


def replay(batches: Batches, evidence: Evidence | None) -> Iterator[int | Divergence]:
    """Run the reference up to the step of `evidence`; yields a number for each step, the divergence last."""
    if evidence is None:
        return
    config = batches.config
    for leg, snapshots in alone(batches):
        snapshot = snapshots[config.directions.place(evidence.rank) % len(snapshots) if leg is config else 0]
        if snapshot.step == evidence.step and (leg is config or evidence.what == "loss"):
            yield locate(config, evidence, snapshot)
            return
        yield snapshot.step


def orders_of_addition(config: Config, chunk: int) -> dict[str, str]:
    """The sums of micro-batches g0, g1, … in `chunk` by the stages, computed on symbols, and the declared ones."""
    if config.order.within is None:
        return {"ours": config.order.words, "reference": config.order.words}
    mesh, block = config.mesh, config.added_first
    declared = config.order.total([symbols(number, mesh.size) for number in range(mesh.size * block)], mesh)
    ours = chunk_sums(config.addition, mesh, block)
    return {"ours": str(ours[chunk]), "reference": str(declared[chunk])}


def locate(config: Config, evidence: Evidence, snapshot: Snapshot) -> Divergence:
    """The first element in which `evidence` differs from the reference's snapshot of the same step on that place."""
    units, chunks = config.model.units, config.ranks
    coordinates = config.directions.coordinates(config.directions.place(evidence.rank))
    unit, due, length = None, snapshot.loss, 0
    if evidence.unit is not None:
        unit = units[evidence.unit]
        flat, length = with_padding(states(snapshot, unit)[evidence.what], chunks), chunk_length(unit.count, chunks)
        due = comparable(evidence.what, split(flat, chunks)[evidence.chunk])
    found = first_element(evidence.values, due, (evidence.what, unit, evidence.chunk * length), evidence.step,
                          evidence.rank, length, coordinates)
    assert found is not None
    return found


def first_element(
    ours: Array, due: Array, where: tuple[str, Unit | None, int], step: int, rank: int, length: int,
    coordinates: Coordinates = ORIGIN,
) -> Divergence | None:
    """The first element that differs; `where` is the kind of array, its unit, and the number of its first element.

    A chunk has `length` elements.
    """
    what, unit, start = where
    differs = np.flatnonzero(bit_pattern(ours) != bit_pattern(due))
    if not len(differs):
        return None
    first = int(differs[0])
    layer, parameter, index = (None, what, ()) if unit is None else element(unit, start + first, coordinates)
    return Divergence(
        step=step, layer=layer, parameter=parameter,
        name=parameter if unit is None or layer is None else full_name(unit, layer, parameter), index=index,
        ours=float(ours[first]), reference=float(due[first]), ours_bits=hexadecimal(ours[first]),
        reference_bits=hexadecimal(due[first]),
        ulps=ulps_apart(ours[first], due[first]) if ours.dtype.kind not in "biu" else None, rank=rank,
        state=None if what == WEIGHTS or unit is None else what, differing_elements=len(differs),
        chunk=(start + first) // length if length else 0)


def element(unit: Unit, offset: int, coordinates: Coordinates = ORIGIN) -> tuple[int, str, tuple[int, ...]]:
    """Layer number, parameter name and index in the whole of an element of a place's flat buffer, or of its padding."""
    for place in unit.places:
        if place.start <= offset < place.stop:
            at = offset - place.start
            ((at, _),) = place.parameter.in_whole(at, at + 1, coordinates)
            index = np.unravel_index(at, place.parameter.whole_shape)
            return place.layer, place.parameter.name, tuple(int(i) for i in index)
    return unit.numbers[-1], "padding", (offset - unit.count,)


def full_name(unit: Unit, layer: int, parameter: str) -> str:
    """The usual name of a layer's parameter, or of the padding behind its last one."""
    return unit.layers[unit.numbers.index(layer)].prefix + parameter


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
    mine, other = (int(number_line(np.asarray(each))[0]) for each in (ours, reference))
    return abs(mine - other)


def number_line(values: Array) -> Array:
    """The position of each float among all of its dtype: 0 for ±0, and neighbours are one apart; a NaN's is far.

    >>> number_line(np.array([0.0, -0.0, 1e-45, -1e-45], np.float32)).tolist()
    [0, 0, 1, -1]
    """
    bits = bit_pattern(values)
    sign = bits.dtype.type(1 << (8 * bits.dtype.itemsize - 1))
    places = (bits & ~sign).astype(np.int64)
    found: Array = np.where(bits & sign, -places, places)
    return found


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
        mine, total = replace(mesh, rank=comm.rank), None
        for number in range(comm.rank * block, (comm.rank + 1) * block):
            total = addition.accumulate(total, symbols(number, comm.size))
        full = addition.reduce_scatter(mine.within(comm), total, lambda full: full)
        own = split(full, mine.group)[mine.place]
        if mine.replicas > 1:
            add_up(mine.across(comm), own)
        return list(own)

    held = spawn(program, mesh.size)
    return [each for rank in mesh.groups[0] for each in held[rank]]
