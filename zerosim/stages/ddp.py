"""DDP, or Stage 0: every rank keeps everything, and only gradients travel.

    0. every rank keeps all weights, all gradients and the whole optimizer state
    1. run forward and backward passes
    2. reduce-scatter gradients
    3. all-gather gradients                    (2 and 3 together are an all-reduce)
    4. compute weight updates and apply them, the same ones on every rank
"""

from zerosim.autograd.tape import Total
from zerosim.stages.replica import Batch, Initial, Replica


def keep(replica: Replica, initial: Initial) -> None:
    """Before the first step: what this rank keeps of the weights and of the optimizer state."""
    for unit in replica.units:                                            # 0
        replica.weights[unit] = replica.filled(unit, initial(unit))
        replica.begin_state(unit, initial(unit), replica.weights[unit])


def step(replica: Replica, batch: Batch) -> Total:
    """One step: the weights are then those of the next, and what is returned is this rank's part of the loss."""
    tape, weights = replica.tape, replica.weights
    replica.begin(batch)

    activations = batch.inputs                                            # 1
    for unit in replica.units:
        activations = tape.forward(unit, weights[unit], activations)
    loss, upstream = tape.loss(replica.loss_name, activations, batch.targets, batch.samples)

    for unit in replica.backward_units:
        upstream, gradient = tape.backward(unit, weights[unit], upstream)
        gradient = replica.reduce_scatter(gradient)                       # 2
        gradient = replica.all_gather(gradient)                           # 3
        replica.keep(unit, gradient)
        del gradient

    replica.settle(whole=True)
    for unit in replica.units:
        replica.update(unit, weights[unit])                               # 4
    return loss
