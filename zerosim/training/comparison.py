"""Is what each rank holds, after every step, byte for byte what one process holds that trains alone?

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
from zerosim.models.units import Unit
from zerosim.numerics.digests import Digest, digest
from zerosim.numerics.not_a_number import with_one_nan
from zerosim.reference import Snapshot
from zerosim.sharding import padded, split
from zerosim.stages.replica import Replica
from zerosim.stages.state import ACCUMULATED, GRADIENT
from zerosim.worlds.objects import broadcast_object, gather_objects

WEIGHTS = "weights"


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
    state = replica.state
    for number, unit in enumerate(replica.units):
        for chunk, values in state.layouts.of(unit, "parameters").chunks(state.weights[unit]):
            yield number, WEIGHTS, chunk, values
        for slot, buffer in state.optimizer.get(unit, {}).items():
            for chunk, values in state.layouts.of(unit, "optimizer").chunks(buffer):
                yield number, slot, chunk, values
        for what, gradient in state.gradients_of(unit).items():
            for chunk, values in state.gradient_layouts[unit].chunks(gradient):
                if sums_everywhere or chunk == replica.comm.rank:
                    yield number, what, chunk, comparable(what, values)


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


def first_of(found: Sequence[Evidence | None] | None) -> Evidence | None:
    """The earliest of what the ranks have found, if any has."""
    pieces = [each for each in found or [] if each is not None]
    return min(pieces, key=lambda each: each.place, default=None)
