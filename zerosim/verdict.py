"""The verdict: is what each rank holds, after every step, byte for byte what one process holds that trains alone?

Rank 0 trains alone once and publishes a fingerprint of every step. Then each rank compares what it holds with
the fingerprints by itself, so that checking moves no weights, and keeps the first thing that differs. Only when
something did is the reference trained again, up to that step, to name the element.

What is compared: the loss and the weights after every step; after the last one the optimizer state and the gradients
too. All of them with their padding, which is zero. Of a gradient that is not a number only that it is none counts:
the optimizer makes every NaN the same one.

Without a reference, ranks that hold the same chunk are held to each other.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from zerosim.allocation import Array
from zerosim.comm import Communicator
from zerosim.fingerprints import Digest, digest
from zerosim.model import Unit
from zerosim.optim import with_one_nan
from zerosim.reference import Snapshot
from zerosim.sharding import chunk_length, padded, split
from zerosim.stages.replica import Replica
from zerosim.worlds.objects import broadcast_object, gather_objects

WEIGHTS, GRADIENT, ACCUMULATED = "weights", "gradient", "accumulated gradient"


@dataclass(frozen=True)
class Fingerprint:
    """What one process held after `step` steps: the digest of each chunk, by unit and by what it is of."""

    step: int
    loss: bytes
    chunks: tuple[dict[str, list[Digest]], ...]


@dataclass(frozen=True)
class Evidence:
    """Bytes that a rank held and the reference did not: one chunk of one unit, or the loss (unit is None)."""

    step: int
    unit: int | None
    chunk: int
    rank: int
    what: str
    values: Array

    @property
    def place(self) -> tuple[int, int, int, int]:
        """Where in the run: the earliest step first; in it the loss, then units in model order."""
        return self.step, -1 if self.unit is None else self.unit, self.chunk, self.rank


@dataclass(frozen=True)
class Divergence:
    """The first element that differs: where, both values, and how many ULPs apart they are."""

    step: int
    layer: int | None
    parameter: str
    index: tuple[int, ...]
    ours: float
    reference: float
    ours_bits: str
    """In hexadecimal, as is `reference_bits`: what tells one NaN from another, and −0 from 0."""
    reference_bits: str
    ulps: int | None
    rank: int
    state: str | None
    differing_elements: int
    chunk: int


def fingerprint(units: Sequence[Unit], snapshot: Snapshot, ranks: int, *, last: bool) -> Fingerprint:
    """The digests of a snapshot, cut into as many chunks as there are ranks; before the last step of weights alone."""
    chunks = tuple(
        {
            what: [digest(comparable(what, chunk)) for chunk in split(with_padding(flat, ranks), ranks)]
            for what, flat in states(snapshot, unit).items()
            if last or what == WEIGHTS
        }
        for unit in units
    )
    return Fingerprint(snapshot.step, snapshot.loss.tobytes(), chunks)


def states(snapshot: Snapshot, unit: Unit) -> dict[str, Array]:
    """All that one process holds of a unit, by what it is."""
    found = {WEIGHTS: snapshot.weights[unit], **snapshot.optimizer.get(unit, {})}
    if unit in snapshot.gradients:
        gradient = snapshot.gradients[unit]
        found[GRADIENT] = gradient.narrow
        if gradient.accumulated is not None:
            found[ACCUMULATED] = gradient.accumulated
    return found


def with_padding(flat: Array, ranks: int) -> Array:
    """`flat` and as many zeros as make its chunks equal.

    >>> with_padding(np.ones(3), 2).tolist()
    [1.0, 1.0, 1.0, 0.0]
    """
    return np.concatenate([flat, np.zeros(padded(len(flat), ranks) - len(flat), flat.dtype)])


def comparable(what: str, values: Array) -> Array:
    """`values`; of a gradient, a copy with one NaN for all."""
    return with_one_nan(values.copy()) if what in (GRADIENT, ACCUMULATED) else values


def published(comm: Communicator, snapshots: Iterable[Any] | None) -> Iterator[Any]:
    """On every rank, one after the other, what rank 0 iterates over; on the others `snapshots` is None."""
    if snapshots is None:
        while (item := broadcast_object(comm, None)) is not None:
            yield item
        return
    for item in snapshots:
        yield broadcast_object(comm, item)
    broadcast_object(comm, None)


@dataclass
class Checker:
    """One rank's comparison of its replica with the published fingerprints, step by step.

    `sums_everywhere`: in a full buffer of gradients every chunk is a sum, not only this rank's own.
    """

    replica: Replica
    history: Sequence[Fingerprint]
    sums_everywhere: bool
    evidence: Evidence | None = field(default=None, init=False)

    def check(self, step: int, loss: Array | None) -> None:
        """Compare what this rank holds after `step`; remember the first chunk that differs."""
        if self.evidence is None:
            self.evidence = next(self._differences(step, loss), None)

    def _differences(self, step: int, loss: Array | None) -> Iterator[Evidence]:
        expected, rank = self.history[step], self.replica.comm.rank
        if loss is not None and loss.tobytes() != expected.loss:
            yield Evidence(step, None, 0, rank, "loss", loss.copy())
        last = step == len(self.history) - 1
        for number, what, chunk, values in held_chunks(self.replica, self.sums_everywhere):
            due = expected.chunks[number]
            if (last or what == WEIGHTS) and digest(values) != due[what][chunk]:
                yield Evidence(step, number, chunk, rank, what, values.copy())


def held_chunks(replica: Replica, sums_everywhere: bool) -> Iterator[tuple[int, str, int, Array]]:
    """All that a rank holds: the unit's number, what it is, the chunk's number, and its elements with padding."""
    for number, unit in enumerate(replica.units):
        held = {WEIGHTS: replica.weights[unit], **replica.optimizer.get(unit, {})}
        summed = {GRADIENT: replica.gradients.get(unit), ACCUMULATED: replica.accumulated.get(unit)}
        for what, buffer in held.items():
            for chunk, values in chunks_of(replica, unit, buffer):
                yield number, what, chunk, values
        for what, gradient in summed.items():
            for chunk, values in chunks_of(replica, unit, gradient) if gradient is not None else ():
                if sums_everywhere or chunk == replica.comm.rank:
                    yield number, what, chunk, comparable(what, values)


def chunks_of(replica: Replica, unit: Unit, buffer: Array) -> Iterator[tuple[int, Array]]:
    """The number and the elements, with padding, of each chunk in a full buffer or a shard."""
    if len(buffer) == padded(unit.count, replica.comm.size):
        yield from enumerate(split(buffer, replica.comm.size))
    else:
        yield replica.comm.rank, buffer


def disagreement(comm: Communicator, replica: Replica, sums_everywhere: bool) -> str | None:
    """On rank 0, of which chunk two ranks hold different bytes, in words; None if of none, and on other ranks."""
    held = {
        (number, what, chunk): digest(values)
        for number, what, chunk, values in held_chunks(replica, sums_everywhere)
    }
    first: dict[tuple[int, str, int], tuple[int, Digest]] = {}
    for rank, digests in enumerate(gather_objects(comm, held) or []):
        for key, found in digests.items():
            other, expected = first.setdefault(key, (rank, found))
            if found != expected:
                number, what, chunk = key
                unit = replica.units[number].name
                return f"ranks {other} and {rank} hold different {what} in chunk {chunk} of {unit}"
    return None


def locate(units: Sequence[Unit], evidence: Evidence, snapshot: Snapshot, ranks: int) -> Divergence:
    """The first element in which `evidence` differs from the reference's snapshot of the same step."""
    if evidence.unit is None:
        ours, expected, start = evidence.values, snapshot.loss, 0
    else:
        unit = units[evidence.unit]
        flat = with_padding(states(snapshot, unit)[evidence.what], ranks)
        start = evidence.chunk * chunk_length(unit.count, ranks)
        ours, expected = evidence.values, comparable(evidence.what, split(flat, ranks)[evidence.chunk])
    differs = np.flatnonzero(bit_pattern(ours) != bit_pattern(expected))
    first = int(differs[0])
    layer, parameter, index = (
        (None, "loss", ())
        if evidence.unit is None
        else element(units[evidence.unit], start + first)
    )
    return Divergence(
        step=evidence.step,
        layer=layer,
        parameter=parameter,
        index=index,
        ours=float(ours[first]),
        reference=float(expected[first]),
        ours_bits=hexadecimal(ours[first]),
        reference_bits=hexadecimal(expected[first]),
        ulps=ulps_apart(ours[first], expected[first]),
        rank=evidence.rank,
        state=None if evidence.what in (WEIGHTS, "loss") else evidence.what,
        differing_elements=len(differs),
        chunk=evidence.chunk,
    )


def element(unit: Unit, offset: int) -> tuple[int, str, tuple[int, ...]]:
    """Layer number, parameter name and index of an element of a unit's flat buffer; behind its end lies padding."""
    for parameter in unit.parameters:
        if parameter.start <= offset < parameter.start + parameter.count:
            _, layer, name = parameter.name.split(".")
            index = np.unravel_index(offset - parameter.start, parameter.shape)
            return int(layer), name, tuple(int(i) for i in index)
    return unit.layers[-1].index, "padding", (offset - unit.count,)


def bit_pattern(values: Array) -> Array:
    """The same bytes as unsigned integers.

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
    """How many representable numbers lie between two floats of one dtype, the further one included.

    0 for −0 against +0, which are different bytes for the same number; None when either is NaN.

    >>> ulps_apart(np.float32(1.0), np.nextafter(np.float32(1.0), np.float32(2.0)))
    1
    """
    if np.isnan(ours) or np.isnan(reference):
        return None
    return abs(_place_on_the_number_line(ours) - _place_on_the_number_line(reference))


def _place_on_the_number_line(value: Any) -> int:
    bits = int(bit_pattern(np.asarray(value))[0])
    sign = 1 << (value.dtype.itemsize * 8 - 1)
    return -(bits - sign) if bits & sign else bits
