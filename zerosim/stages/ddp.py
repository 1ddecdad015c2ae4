"""DDP, or Stage 0: every rank keeps all states, and only gradients are sent.

    0. every rank keeps all weights, all gradients and the whole optimizer state
    1. for each micro-batch, run forward and backward passes, and add its gradients to those of the earlier ones
    with the last micro-batch, for each unit:
    2. reduce-scatter gradients
    3. all-gather gradients                    (2 and 3 together are an all-reduce)
    once a step:
    4. unscale and clip gradients, if requested, by their norm: every rank has all of them
    5. compute weight updates and apply them, the same ones on every rank

With overlap, 2 and 3 run during the backward of the next unit.
"""

from zerosim.autograd.tape import Total
from zerosim.core.allocation import Kind
from zerosim.stages.replica import Batch, Replica

SHARDED: tuple[Kind, ...] = ()                                            # 0


def step(replica: Replica, batch: Batch) -> Total:
    """One step: updates the weights and returns this rank's part of the loss."""
    tape, weights, loss = replica.tape, replica.state.weights, None
    replica.zero_grad(batch)

    for part in replica.parts(batch):                                     # 1
        activations = part.inputs
        for unit in replica.forward_units:
            activations = tape.forward(unit, weights[unit], activations)
        loss, upstream = tape.loss(replica.loss_name, activations, part.targets, part.counted, loss)

        for unit in replica.backward_units:
            tape.recompute(unit, weights[unit])
            upstream, gradient = tape.backward(unit, weights[unit], upstream, replica.unreduced)
            replica.wait_for_reduction()
            gradient = replica.at_boundary(part, unit, gradient)
            gradient = replica.reduce_scatter(unit, gradient)             # 2
            gradient = replica.all_gather(unit, gradient)                 # 3
            replica.keep(unit, gradient)
            del gradient
        replica.wait_for_reduction()

    replica.unscale_and_clip()                                            # 4
    for unit in replica.units:
        replica.update(unit, weights[unit])                               # 5
    return loss
