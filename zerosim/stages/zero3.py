"""ZeRO Stage III: every rank owns 1/N of everything, and borrows a unit's weights only while it uses them.

    0. every rank keeps its shard of the weights, of the gradients and of the optimizer state
    for each micro-batch:
    1. forward, for each unit:
         all-gather its weights, use them, release them
    2. backward, for each unit, last first:
         all-gather its weights, use them, release them
         with the last micro-batch, or with each one, as the scenario says:
         reduce-scatter its gradient, and release all but the shard
    once a step:
    3. unscale and clip gradients, if asked to, by their norm: all-gather what each shard adds to it
    4. compute and apply the weight updates of this rank's shard

If asked to, the next unit's all-gather goes on while this unit computes, or a unit's weights stay from 1 until 2; and
a unit's reduce-scatter goes on while the next unit goes backward.
"""

from zerosim.allocation import Kind
from zerosim.autograd.tape import Total
from zerosim.stages.replica import Batch, Replica, with_next

SHARDED: tuple[Kind, ...] = ("optimizer", "gradients", "parameters")      # 0


def step(replica: Replica, batch: Batch) -> Total:
    """One step: the weights are then those of the next, and what is returned is this rank's part of the loss."""
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
        loss, upstream = tape.loss(replica.loss_name, activations, part.targets, part.samples, loss)

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
