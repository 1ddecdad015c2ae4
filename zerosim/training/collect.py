"""Collection of a trained model on rank 0, unit by unit, for digests, the test, a sample, and storage."""

import hashlib
from dataclasses import dataclass

import numpy as np

from zerosim.allocation import Array
from zerosim.autograd.tape import Tape
from zerosim.comm import Communicator
from zerosim.models.units import Unit
from zerosim.numerics.digests import little_endian
from zerosim.sharding import Layout, full, split
from zerosim.stages.replica import Replica
from zerosim.training.batches import Batches
from zerosim.training.sampling import continued


@dataclass(frozen=True)
class Final:
    """The results of a trained row on rank 0."""

    weights_sha256: str
    optimizer_sha256: str
    test: float | None
    sample: str | None
    weights: dict[Unit, Array] | None


def collected(comm: Communicator, batches: Batches, replica: Replica, *, keep_weights: bool) -> Final:
    """Collect the model on rank 0, one unit at a time; digest it, test it and, with `keep_weights`, keep it."""
    config, state, group = batches.config, replica.state, replica.mesh.within(comm)
    weights_digest, optimizer_digest = hashlib.sha256(), hashlib.sha256()
    kept, used = dict[Unit, Array](), dict[Unit, Array]()
    outputs = batches.test_inputs() if comm.rank == 0 else []
    speaks = bool(outputs) and batches.dataset.kind == "tokens" and config.steps > 0
    tape = Tape(lowest=len(config.model.layers), policy=config.policy)
    for unit, segment in config.model.segments:
        weights = whole(group, unit, state.weights[unit], state.layouts.of(unit, "parameters"))
        computed_with = weights.astype(config.computing.weights, copy=False)
        outputs = tape.forward(unit, computed_with, outputs)
        if speaks:
            used[unit] = computed_with.copy()
        if keep_weights:
            kept[unit] = weights.copy()
        layout = state.layouts.of(unit, "optimizer")
        slots = [whole(group, unit, buffer, layout) for buffer in state.optimizer.get(unit, {}).values()]
        for start, stop in map(unit.bounds, segment.numbers):
            weights_digest.update(little_endian(weights[start:stop]))
            for slot in slots:
                optimizer_digest.update(little_endian(slot[start:stop]))
    return Final(
        weights_digest.hexdigest(),
        optimizer_digest.hexdigest(),
        batches.test(outputs[0]) if outputs else None,
        continued(config.model, used, batches.dataset, config.row.train.seed, config.policy) if speaks else None,
        kept if keep_weights else None,
    )


def whole(comm: Communicator, unit: Unit, buffer: Array, layout: Layout) -> Array:
    """The unpadded contents of `unit` on rank 0; every rank of a group passes its buffer.

    Each rank waits until its buffer has arrived; otherwise copies of messages under way could be as large as the
    model.
    """
    everything, came = full(unit.count, layout.size), np.zeros(1, np.uint8)
    if layout == everything:
        return buffer[: unit.count]
    if comm.rank != 0:
        comm.send(buffer, to=0)
        comm.recv(into=came, source=0)
        return buffer[:0]
    gathered = np.empty(everything.length, buffer.dtype)
    chunks = split(gathered, comm.size)
    chunks[0][:] = buffer
    for source in range(1, comm.size):
        comm.recv(into=chunks[source], source=source)
        comm.send(came, to=source)
    return gathered[: unit.count]
