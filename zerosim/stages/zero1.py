"""ZeRO Stage I: every rank owns 1/N of the optimizer state, and so updates 1/N of the weights.

    0. every rank keeps all weights, all gradients, and its shard of the optimizer state
    1. run forward and backward passes
    2. reduce-scatter gradients
    3. compute and apply the weight updates of this rank's shard
    4. all-gather weights
"""

from zerosim.autograd.tape import Total
from zerosim.stages.replica import Batch, Initial, Replica


def keep(replica: Replica, initial: Initial) -> None:
    """Before the first step: what this rank keeps of the weights and of the optimizer state."""
    for unit in replica.units:                                            # 0
        replica.weights[unit] = replica.filled(unit, initial(unit))
        replica.begin_state(unit, initial(unit), replica.own(replica.weights[unit]))


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
        gradient = replica.reduce(gradient)                               # 2
        replica.keep(unit, gradient)
        del gradient

    replica.settle()
    for unit in replica.units:
        replica.update(unit, replica.own(weights[unit]))                  # 3
        replica.publish(unit, weights[unit])                              # 4
    return loss
