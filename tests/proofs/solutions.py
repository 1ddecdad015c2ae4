"""A solution to each exercise that this library's own text does not solve."""

import numpy as np

from zerosim.core.comm import left, right


def reduce_scatter_left(comm, chunks, reduce=np.add):
    for step in range(comm.size - 1):
        comm.exchange(chunks[(comm.rank + step + 1) % comm.size], to=left(comm),
                      into=chunks[(comm.rank + step + 2) % comm.size], source=right(comm), reduce=reduce)


def zero2_each_part_step(replica, batch):
    tape, weights, loss = replica.tape, replica.state.weights, None
    replica.zero_grad(batch)
    for x, y in zip(batch.inputs, batch.targets, strict=True):
        activations = [x]
        for unit in replica.units:
            activations = tape.forward(unit, weights[unit], activations)
        loss, upstream = tape.loss(replica.loss_name, activations, [y], batch.counted, loss)
        for unit in replica.backward_units:
            upstream, gradient = tape.backward(unit, weights[unit], upstream)
            gradient = replica.reduce_scatter(unit, gradient)
            replica.keep_shard(unit, gradient)
            del gradient
    return updated(replica, loss)


def updated(replica, loss):
    replica.unscale_and_clip()
    for unit in replica.units:
        replica.update(unit, replica.own(replica.state.weights[unit]))
        replica.publish(unit, replica.state.weights[unit])
    return loss


def split_pair(all_reduce, x, up, down, upstream):
    inner = np.maximum(x @ up.T, 0.0)
    of_inner = (upstream @ down) * (inner > 0.0)
    return all_reduce(inner @ down.T), all_reduce(of_inner @ up), of_inner.T @ x, upstream.T @ inner


def one_f_one_b(rank, ranks, micro_batches):
    warm = min(ranks - 1 - rank, micro_batches)
    passes = [("F", number) for number in range(warm)]
    for number in range(warm, micro_batches):
        passes += [("F", number), ("B", number - warm)]
    return passes + [("B", number) for number in range(micro_batches - warm, micro_batches)]
