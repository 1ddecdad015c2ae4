"""Comparison of each rank's state with one process, byte for byte, after every step.

Rank 0 trains once in one process and publishes a fingerprint of every step. Each rank compares its state with the
fingerprints locally, so the check moves no weights, and keeps the first difference. Only after a difference the
reference is trained again up to that step, to name the element.

After every step the loss, the weights, the optimizer state and the gradients are compared, including their padding,
which is zero. NaN elements of a gradient are equal whatever their bits, because the optimizer makes all NaNs the same.

Every rank's replica is checked, and nothing of a large model is stored twice. Without a reference the only other
witness is another row, whose losses, weights and optimizer state are compared at the end. Rows with a different order
of addition differ rightly and are not compared; `compared_with` in the outcome lists the comparisons.

`optimizer_sha256` is computed layer by layer, and within a layer slot by slot. It does not depend on the grouping of
layers into units.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from zerosim.core.allocation import Array
from zerosim.core.bits import Digest, digest, little_endian, with_one_nan
from zerosim.core.comm import Communicator
from zerosim.core.errors import CollectiveError
from zerosim.core.sharding import padded, split
from zerosim.core.wires import WireError
from zerosim.models.places import joined
from zerosim.models.units import Unit
from zerosim.stages.replica import Replica
from zerosim.stages.scaling import Scaling
from zerosim.stages.storage import ACCUMULATED, GRADIENT, GRADIENTS, WEIGHTS
from zerosim.training.config import Config
from zerosim.training.reference import Snapshot
from zerosim.worlds.objects import broadcast_object


@dataclass(frozen=True)
class Fingerprint:
    """The state of one process after `step` steps: the digest of each chunk, by unit and kind of state."""

    step: int
    loss: bytes
    chunks: tuple[dict[str, list[Digest]], ...]
    counts: dict[str, float]
    """The number of updates, and the state of the loss scale."""
    sha256: tuple[str, str] | None
    """The digests of all weights and of all optimizer state, after the last step."""
    wire_errors: Mapping[str, WireError] = field(default_factory=dict)
    """The quantisation errors of the step."""


@dataclass(frozen=True)
class Evidence:
    """The bytes of a rank that differ from the reference: one chunk of one unit, or the loss (unit is None)."""

    step: int
    unit: int | None
    chunk: int
    rank: int
    what: str
    values: Array


def fingerprints(config: Config, snapshots: Sequence[Snapshot]) -> list[Fingerprint]:
    """The fingerprint of every place."""
    sha256 = whole_sha256(config, snapshots) if snapshots[0].step == config.train.steps else None
    return [Fingerprint(
        snapshot.step, snapshot.loss.tobytes(),
        tuple({what: [*map(digest, comparable_chunks(what, flat, config.directions.data))]
               for what, flat in states(snapshot, unit).items()} for unit in config.model.units),
        counts(snapshot.updates, snapshot.scaling), sha256, snapshot.wire_errors) for snapshot in snapshots]


def whole_sha256(config: Config, snapshots: Sequence[Snapshot]) -> tuple[str, str]:
    """The digests of all weights and all optimizer state, layer by layer, whatever the units; places are joined."""
    of_weights, of_optimizer = hashlib.sha256(), hashlib.sha256()
    pairs = list(zip(config.in_one_piece.units, config.model.units, strict=True))
    layers = sorted(((number, *pair) for pair in pairs for number in pair[0].numbers), key=lambda layer: layer[0])
    for number, whole, unit in layers:
        start, stop = whole.bounds(number)
        states = [[snapshot.weights[unit], *snapshot.optimizer.get(unit, {}).values()] for snapshot in snapshots]
        weights, *slots = (joined(whole, unit, flats, config.directions) for flats in zip(*states, strict=True))
        of_weights.update(little_endian(weights[start:stop]))
        for slot in slots:
            of_optimizer.update(little_endian(slot[start:stop]))
    return of_weights.hexdigest(), of_optimizer.hexdigest()


def counts(updates: int, scaling: Scaling) -> dict[str, float]:
    """The counters of a rank's state, by name."""
    return {"updates": updates, "loss scale": scaling.loss_scale, "steps since it changed": scaling.good_steps}


def states(snapshot: Snapshot, unit: Unit) -> dict[str, Array]:
    """The state of one process for a unit, by kind."""
    buffers = {WEIGHTS: snapshot.weights[unit], **snapshot.optimizer.get(unit, {})}
    if unit in snapshot.gradients:
        gradient = snapshot.gradients[unit]
        buffers[GRADIENT] = gradient.narrow
        if gradient.accumulated is not None:
            buffers[ACCUMULATED] = gradient.accumulated
    return buffers


def comparable_chunks(what: str, flat: Array, chunks: int) -> list[Array]:
    """The chunks of a unit's state, the last with zeros until all are equally long.

    >>> [chunk.tolist() for chunk in comparable_chunks(WEIGHTS, np.ones(3), 2)]
    [[1.0, 1.0], [1.0, 0.0]]
    """
    whole = np.pad(flat, (0, padded(len(flat), chunks) - len(flat)))
    return [comparable(what, chunk) for chunk in split(whole, chunks)]


def comparable(what: str, values: Array) -> Array:
    """`values`; for a gradient, a copy in which all NaNs have the same bits."""
    return with_one_nan(values.copy()) if what in GRADIENTS else values


def published(comm: Communicator, snapshots: Iterable[Any] | None) -> Iterator[Any]:
    """The items of `snapshots` on rank 0, on every rank in order; other ranks pass None."""
    if snapshots is None:
        while (item := broadcast_object(comm, None)) is not None:
            yield item
        return
    for item in snapshots:
        yield broadcast_object(comm, item)
    broadcast_object(comm, None)


def compared(
    replica: Replica, rank: int, expected: Fingerprint, units: Sequence[Unit], loss: Array | None, *,
    sums_everywhere: bool,
) -> tuple[str | None, Evidence | None]:
    """The first counter of a rank that differs from one process's, or missing or extra state, in words; and the loss,
    or the first chunk, that differs.

    `units` are those of the fingerprint; a rank of a pipeline has some of them. Before the first step of a run there
    are no `loss` and no gradients. `sums_everywhere` states whether every chunk of a full buffer of gradients is a sum,
    not only this rank's own.
    """
    state, step, chunks = replica.state, expected.step, dict[tuple[int, str], set[int]]()
    evidence = None
    if loss is not None and loss.tobytes() != expected.loss:
        evidence = Evidence(step, None, 0, rank, "loss", loss.copy())
    for number, what, chunk, values in held_chunks(replica, units, sums_everywhere):
        chunks.setdefault((number, what), set()).add(chunk)
        digests = expected.chunks[number]
        if evidence is None and what in digests and digest(values) != digests[what][chunk]:
            evidence = Evidence(step, number, chunk, rank, what, values.copy())
    words = [f"has {name} {count:g}, one process has {expected.counts[name]:g}"
             for name, count in counts(state.updates, state.scaling).items() if count != expected.counts[name]]
    for number, unit in numbered(replica, units):
        kept = {what for (at, what), seen in chunks.items() if at == number and seen >= {*replica.mesh.owned}}
        due_here = set(expected.chunks[number]) - (set() if loss is not None else {*GRADIENTS})
        words += [f"keeps {'a' if what in kept else 'no'} {what} of {unit.name}" for what in sorted(kept ^ due_here)]
    return next((f"after step {step} rank {rank} {difference}" for difference in words), None), evidence


def numbered(replica: Replica, units: Sequence[Unit]) -> Iterator[tuple[int, Unit]]:
    """The units of a rank, each with its number among all `units`."""
    on_rank = {unit.numbers: unit for unit in replica.units}
    return ((number, on_rank[unit.numbers]) for number, unit in enumerate(units) if unit.numbers in on_rank)


def held_chunks(
    replica: Replica, units: Sequence[Unit], sums_everywhere: bool
) -> Iterator[tuple[int, str, int, Array]]:
    """All chunks that a rank holds: the unit's number among all `units`, the kind, the chunk's number, its elements."""
    for number, unit in numbered(replica, units):
        for what, layout, buffer in replica.state.states_of(unit):
            if what == WEIGHTS and len(buffer) != layout.length:
                kept = f"{len(buffer)} elements of {unit.name}, where {layout.length} are kept"
                raise CollectiveError(f"after the step replica.state.weights has {kept}; give gathered weights a "
                                      "variable of their own")
            for chunk, values in layout.chunks(buffer):
                if sums_everywhere or chunk in replica.mesh.owned or what not in GRADIENTS:
                    yield number, what, chunk, comparable(what, values)


def first_of(evidence: Sequence[Evidence | None] | None) -> Evidence | None:
    """The earliest of the ranks' evidence: of its step the loss, then units in model order; None if there is none."""
    return min(filter(None, evidence or []), default=None, key=lambda piece: (
        piece.step, -1 if piece.unit is None else piece.unit, piece.chunk, piece.rank))
