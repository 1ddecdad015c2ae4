"""ZeRO Stage III: every rank owns 1/N of everything, and borrows a unit's weights only while it uses them.

    0. every rank keeps its shard of the weights, of the gradients and of the optimizer state
    1. forward, for each unit:
         all-gather its weights, use them, release them
    2. backward, for each unit, last first:
         all-gather its weights, use them, release them
         reduce-scatter its gradient, and release all but the shard
    3. compute and apply the weight updates of this rank's shard
"""

from zerosim.allocation import Array
from zerosim.autograd.tape import Total
from zerosim.model import Unit
from zerosim.stages.replica import Batch, Initial, Replica


def keep(replica: Replica, initial: Initial) -> None:
    for unit in replica.units:                                            # 0
        replica.weights[unit] = replica.shard(unit, replica.filled(unit, initial(unit)), "parameters")
        replica.optimizer[unit] = replica.fresh_state(unit, replica.weights[unit])


def gather(replica: Replica, unit: Unit) -> Array:
    full = replica.full(unit, "parameters")
    replica.own(full)[:] = replica.weights[unit]
    return replica.all_gather(full)


def step(replica: Replica, batch: Batch) -> Total:
    tape, shards, gradients = replica.tape, replica.weights, replica.gradients
    gradients.clear()

    activations = batch.inputs
    for unit in replica.units:                                            # 1
        weights = gather(replica, unit)
        activations = tape.forward(unit, weights, activations)
        del weights
    loss, upstream = tape.loss(replica.loss, activations, batch.targets, batch.samples)

    for unit in reversed(replica.units):                                  # 2
        weights = gather(replica, unit)
        upstream, gradient = tape.backward(unit, weights, upstream)
        del weights
        gradients[unit] = replica.shard(unit, replica.reduce_scatter(gradient), "gradients")
        del gradient

    for unit in replica.units:
        replica.update(unit, shards[unit], gradients[unit], batch.step)   # 3
    return loss
