"""Exercise 3: the stages of ZeRO. Fill in the three functions, then run `zerosim check 3_zero.py`.

A unit is a layer. A buffer is full (all elements of a unit, padded so that the ranks divide it) or a shard (this
rank's chunk of it). You have

    replica.zero_grad(batch)                             begins the step: the last one's gradients are gone
    for part in replica.parts(batch):                    what goes forward and backward at a time: all micro-batches of
                                                         this rank, or each by itself; reduce the gradients of each part

    replica.units                                        the units, first to last
    replica.backward_units                               those that backward goes through, last to first
    replica.state.weights[unit]                          what this rank keeps: full in Stages I and II, a shard in III
    replica.gather(unit)                                 the full weights of a unit of which it keeps a shard
    replica.own(full)                                    this rank's chunk of a full buffer: a view

    replica.tape.forward(unit, weights, activations)     the unit's outputs; weights are full
    replica.tape.loss(replica.loss_name, activations, part.targets, part.counted, loss)
                                                         the loss, added to that of earlier parts (None at first), and
                                                         the upstream gradient
    replica.tape.backward(unit, weights, upstream)       the next upstream gradient, and this rank's full gradient

    replica.reduce_scatter(unit, gradient)               a full buffer: this rank's chunk is the sum over all ranks
    replica.keep(unit, gradient)                         keeps a full gradient for the update
    replica.keep_shard(unit, gradient)                   keeps this rank's chunk of it, so that the rest can be freed

    replica.unscale_and_clip()                           once all gradients are kept
    replica.update(unit, weights)                        one optimizer step, in place, on this rank's shard
    replica.publish(unit, full)                          all-gathers weights of which each rank has updated its chunk

Your function is one training step on this rank's part of the batch: `part.inputs` are the first activations. It
returns the loss that `tape.loss` gave. The result must have the bits of one process that trains alone.
"""

from zerosim.extend import stage


@stage(sharded=("optimizer",))
def zero1_step(replica, batch):
    """Stage I: the optimizer state is sharded, so every rank updates its shard of the weights, then all share them.

    1. run forward and backward passes          3. compute and apply the weight updates of this rank's shard
    2. reduce-scatter gradients                 4. all-gather weights
    """
    raise NotImplementedError


@stage(sharded=("optimizer", "gradients"))
def zero2_step(replica, batch):
    """Stage II: as Stage I, and only the shard of each gradient is kept, as soon as it is reduced.

    What a variable names stays in memory: `del` a full gradient when its shard is kept.
    """
    raise NotImplementedError


@stage(sharded=("optimizer", "gradients", "parameters"))
def zero3_step(replica, batch):
    """Stage III: only shards are kept, of weights too. Before a unit is used, forward or backward, gather its weights.

    Hold a unit's full weights, and its full gradient, no longer than you use them.
    """
    raise NotImplementedError
