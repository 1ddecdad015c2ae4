"""ZeRO Stage I: every rank owns 1/N of the optimizer state, and so updates 1/N of the weights.

    0. every rank keeps all weights, all gradients, and its shard of the optimizer state
    1. for each micro-batch, run forward and backward passes, and add its gradients to those of the earlier ones
    with the last micro-batch, for each unit:
    2. reduce-scatter gradients
    once a step:
    3. unscale and clip gradients, if requested, by their norm: all-gather the square sums of the shards
    4. compute and apply the weight updates of this rank's shard
    5. all-gather weights

With overlap, 2 runs during the backward of the next unit.
"""

from zerosim.autograd.tape import Total
from zerosim.core.allocation import Kind
from zerosim.stages.replica import Batch, Replica

SHARDED: tuple[Kind, ...] = ("optimizer",)                                # 0


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
            gradient = replica.reduce(unit, gradient)                     # 2
            replica.keep(unit, gradient)
            del gradient
        replica.wait_for_reduction()

    replica.unscale_and_clip()                                            # 3
    for unit in replica.units:
        replica.update(unit, replica.own(weights[unit]))                  # 4
        replica.publish(unit, weights[unit])                              # 5
    return loss
