"""A reduce-scatter of its own."""

import numpy as np

from zerosim.comm import left, right


def reduced(replica, unit, gradient):
    comm = replica.comm
    rows = gradient.reshape(comm.size, -1)
    for step in range(comm.size - 1):
        comm.exchange(rows[(comm.rank - step - 1) % comm.size], to=right(comm),
                      into=rows[(comm.rank - step - 2) % comm.size], source=left(comm), reduce=np.add)
    return gradient


def zero3_step(replica, batch):
    tape, shards, loss = replica.tape, replica.state.weights, None
    replica.zero_grad(batch)
    for part in replica.parts(batch):
        activations = part.inputs
        for unit in replica.units:
            weights = replica.gather(unit)
            activations = tape.forward(unit, weights, activations)
            del weights
        loss, upstream = tape.loss(replica.loss_name, activations, part.targets, part.samples, loss)
        for unit in replica.backward_units:
            weights = replica.gather(unit)
            upstream, gradient = tape.backward(unit, weights, upstream)
            del weights
            gradient = reduced(replica, unit, gradient)
            replica.keep_shard(unit, gradient)
            del gradient
    replica.unscale_and_clip()
    for unit in replica.units:
        replica.update(unit, shards[unit])
    return loss
