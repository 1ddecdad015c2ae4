"""ZeRO Stage III: every rank owns 1/N of all states, and gathers a unit's weights only while it uses them.

    0. every rank keeps its shard of the weights, of the gradients and of the optimizer state
    for each micro-batch:
    1. forward, for each unit:
           all-gather its weights, use them, free them
    2. backward, for each unit, last first:
           all-gather its weights, use them, free them
           with the last micro-batch, or with each one, as the scenario says:
           reduce-scatter its gradient, and free all but the shard
    once a step:
    3. unscale and clip gradients, if requested, by their norm: all-gather the square sums of the shards
    4. compute and apply the weight updates of this rank's shard

With prefetch, the next unit's all-gather runs while this unit computes; without resharding, a unit's weights stay from
1 until 2; with overlap, a unit's reduce-scatter runs during the backward of the next unit.
"""

from zerosim.autograd.tape import Total
from zerosim.core.allocation import Kind
from zerosim.stages.replica import Batch, Replica, with_next

SHARDED: tuple[Kind, ...] = ("optimizer", "gradients", "parameters")      # 0


def step(replica: Replica, batch: Batch) -> Total:
    """One step: updates its shard of the weights and returns this rank's part of the loss."""
    tape, shards, loss = replica.tape, replica.state.weights, None
    replica.zero_grad(batch)

    for part in replica.parts(batch):
        activations = part.inputs
        for unit, upcoming in with_next(replica.forward_units, then=replica.backward_units):  # 1
            weights = replica.gather(unit)
            replica.prefetch(upcoming)
            activations = tape.forward(unit, weights, activations)
            replica.reshard(unit, weights)
            del weights
        loss, upstream = tape.loss(replica.loss_name, activations, part.targets, part.counted, loss)

        for unit, upcoming in with_next(replica.backward_units, then=replica.forward_after(part)):  # 2
            weights = replica.gather(unit)
            replica.prefetch(upcoming)
            tape.recompute(unit, weights)
            upstream, gradient = tape.backward(unit, weights, upstream, replica.unreduced)
            del weights
            replica.wait_for_reduction()
            gradient = replica.at_boundary(part, unit, gradient)
            gradient = replica.reduce_scatter(unit, gradient)
            replica.keep_shard(unit, gradient)
            del gradient
        replica.wait_for_reduction()

    replica.unscale_and_clip()                                            # 3
    for unit in replica.units:
        replica.update(unit, shards[unit])                                # 4
    return loss
