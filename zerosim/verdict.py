"""The verdict: is what each rank holds, after every step, byte for byte what one process holds that trains alone?

Rank 0 trains alone once and publishes a fingerprint of every step. Then each rank compares what it holds with
the fingerprints by itself, so that checking moves no weights, and keeps the first thing that differs. Only when
something did is the reference trained again, up to that step, to name the element.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from zerosim.allocation import Array
from zerosim.comm import Communicator
from zerosim.fingerprints import Digest, chunk_digests, digest
from zerosim.model import Unit
from zerosim.reference import Snapshot
from zerosim.sharding import bounds, padded
from zerosim.stages.replica import Replica
from zerosim.worlds.objects import broadcast_object

WEIGHTS = "weights"


@dataclass(frozen=True)
class Fingerprint:
    """What one process held after `step` steps: the digest of each chunk, by unit and by weights or optimizer slot."""

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


def fingerprint(units: Sequence[Unit], snapshot: Snapshot, ranks: int) -> Fingerprint:
    """The digests of a snapshot, cut into as many chunks as there are ranks."""
    chunks = tuple(
        {
            what: chunk_digests(flat, ranks)
            for what, flat in {WEIGHTS: snapshot.weights[unit], **snapshot.optimizer.get(unit, {})}.items()
        }
        for unit in units
    )
    return Fingerprint(snapshot.step, snapshot.loss.tobytes(), chunks)


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
    """One rank's comparison of its replica with the published fingerprints, step by step."""

    replica: Replica
    history: Sequence[Fingerprint]
    evidence: Evidence | None = field(default=None, init=False)

    def check(self, step: int, loss: Array | None) -> None:
        """Compare what this rank holds after `step`; remember the first chunk that differs.

        The optimizer state is compared at the last step only.
        """
        if self.evidence is None:
            self.evidence = next(self._differences(step, loss), None)

    def _differences(self, step: int, loss: Array | None) -> Iterator[Evidence]:
        expected, rank = self.history[step], self.replica.comm.rank
        if loss is not None and loss.tobytes() != expected.loss:
            yield Evidence(step, None, 0, rank, "loss", loss)
        last = step == len(self.history) - 1
        for number, unit in enumerate(self.replica.units):
            held = {WEIGHTS: self.replica.weights[unit]}
            if last:
                held |= self.replica.optimizer.get(unit, {})
            for what, buffer in held.items():
                for chunk, values in held_chunks(self.replica, unit, buffer):
                    if digest(values) != expected.chunks[number][what][chunk]:
                        yield Evidence(step, number, chunk, rank, what, values.copy())


def held_chunks(replica: Replica, unit: Unit, buffer: Array) -> Iterator[tuple[int, Array]]:
    """The number and the elements, without padding, of each chunk in a full buffer or a shard."""
    size, rank = replica.comm.size, replica.comm.rank
    limits = bounds(unit.count, size)
    if len(buffer) == padded(unit.count, size):
        for chunk, (start, stop) in enumerate(limits):
            yield chunk, buffer[start:stop]
    else:
        start, stop = limits[rank]
        yield rank, buffer[: stop - start]


def locate(units: Sequence[Unit], evidence: Evidence, snapshot: Snapshot, ranks: int) -> Divergence:
    """The first element in which `evidence` differs from the reference's snapshot of the same step."""
    if evidence.unit is None:
        ours, expected, start = evidence.values, snapshot.loss, 0
    else:
        unit = units[evidence.unit]
        flat = (
            snapshot.weights[unit]
            if evidence.what == WEIGHTS
            else snapshot.optimizer[unit][evidence.what]
        )
        start, stop = bounds(unit.count, ranks)[evidence.chunk]
        ours, expected = evidence.values, flat[start:stop]
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
    """Layer number, parameter name and index of an element of a unit's flat buffer."""
    for parameter in unit.parameters:
        if parameter.start <= offset < parameter.start + parameter.count:
            _, layer, name = parameter.name.split(".")
            index = np.unravel_index(offset - parameter.start, parameter.shape)
            return int(layer), name, tuple(int(i) for i in index)
    raise AssertionError(f"{unit.name} has no element {offset}")


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
