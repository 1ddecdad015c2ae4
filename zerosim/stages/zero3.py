"""ZeRO Stage III: every rank owns 1/N of everything, and borrows a unit's weights only while it uses them.

    0. every rank keeps its shard of the weights, of the gradients and of the optimizer state
    1. forward, for each unit:
         all-gather its weights, use them, release them
    2. backward, for each unit, last first:
         all-gather its weights, use them, release them
         reduce-scatter its gradient, and release all but the shard
    3. compute and apply the weight updates of this rank's shard
"""

from zerosim.autograd.tape import Total
from zerosim.stages.replica import Batch, Initial, Replica


def keep(replica: Replica, initial: Initial) -> None:
    """Before the first step: what this rank keeps of the weights and of the optimizer state."""
    for unit in replica.units:                                            # 0
        replica.weights[unit] = replica.shard(unit, replica.filled(unit, initial(unit)), "parameters")
        replica.begin_state(unit, initial(unit), replica.weights[unit])


def step(replica: Replica, batch: Batch) -> Total:
    """One step: the weights are then those of the next, and what is returned is this rank's part of the loss."""
    tape, shards, loss = replica.tape, replica.weights, None

    for part in replica.parts(batch):
        activations = part.inputs
        for unit in replica.units:                                        # 1
            weights = replica.gather(unit)
            activations = tape.forward(unit, weights, activations)
            del weights
        loss, upstream = tape.loss(replica.loss_name, activations, part.targets, part.samples, loss)

        for unit in replica.backward_units:                               # 2
            weights = replica.gather(unit)
            upstream, gradient = tape.backward(unit, weights, upstream)
            del weights
            gradient = replica.reduce_scatter(gradient)
            replica.keep_shard(unit, gradient)
            del gradient

    replica.settle()
    for unit in replica.units:
        replica.update(unit, shards[unit])                                # 3
    return loss
