"""After a stage has trained: its model brought to rank 0, unit by unit, to be digested, tested and kept."""

import hashlib
from dataclasses import dataclass

import numpy as np

from zerosim.allocation import Array
from zerosim.autograd.tape import Tape
from zerosim.comm import Communicator
from zerosim.fingerprints import little_endian
from zerosim.model import Unit
from zerosim.recipe import Recipe
from zerosim.sharding import padded, split
from zerosim.stages.replica import Replica


@dataclass(frozen=True)
class Final:
    """What is left on rank 0 when a stage has trained."""

    weights_sha256: str
    optimizer_sha256: str
    test: float | None
    weights: dict[Unit, Array] | None


def bring_home(
    comm: Communicator, recipe: Recipe, replica: Replica, *, keep_weights: bool
) -> Final:
    """Bring the model to rank 0, one unit at a time: digest it, test it and, if asked to, keep it."""
    weights_digest, optimizer_digest = hashlib.sha256(), hashlib.sha256()
    kept: dict[Unit, Array] = {}
    x_test = recipe.dataset.x_test
    outputs = []
    if comm.rank == 0 and x_test is not None:
        outputs = [x_test.astype(recipe.precision.weights, copy=False)]
    tape = Tape(lowest=len(recipe.model.layers))
    for unit in recipe.model.units:
        weights = whole(comm, unit, replica.weights[unit])
        weights_digest.update(little_endian(weights))
        outputs = tape.forward(unit, weights, outputs)
        if keep_weights:
            kept[unit] = weights.copy()
        states = [whole(comm, unit, state) for state in replica.optimizer.get(unit, {}).values()]
        for start, stop in unit.layer_bounds:
            for state in states:
                optimizer_digest.update(little_endian(state[start:stop]))
    return Final(
        weights_digest.hexdigest(),
        optimizer_digest.hexdigest(),
        recipe.test(outputs[0]) if outputs else None,
        kept if keep_weights else None,
    )


def whole(comm: Communicator, unit: Unit, buffer: Array) -> Array:
    """On rank 0 the unpadded contents of `unit`, of which every rank passes its full buffer or its shard."""
    if len(buffer) == padded(unit.count, comm.size):
        return buffer[: unit.count]
    if comm.rank != 0:
        comm.send(buffer, to=0)
        return buffer[:0]
    full = np.empty(padded(unit.count, comm.size), buffer.dtype)
    chunks = split(full, comm.size)
    chunks[0][:] = buffer
    for source in range(1, comm.size):
        comm.recv(into=chunks[source], source=source)
    return full[: unit.count]
