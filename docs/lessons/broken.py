"""Ten broken programs, for lesson 9: what is wrong with each?"""

import numpy as np

from zerosim.comm import left, right
from zerosim.extend import stage


def a_reduce_scatter(comm, chunks, reduce=np.add):
    for step in range(comm.size - 1):
        outgoing = (comm.rank - step) % comm.size
        incoming = (comm.rank - step - 1) % comm.size
        comm.exchange(chunks[outgoing], to=right(comm), into=chunks[incoming], source=left(comm), reduce=reduce)


def b_reduce_scatter(comm, chunks, reduce=np.add):
    for step in range(comm.size - 1):
        outgoing = (comm.rank - step - 1) % comm.size
        incoming = (comm.rank - step - 2) % comm.size
        comm.exchange(chunks[outgoing], to=right(comm), into=chunks[incoming], source=left(comm))


def c_all_gather(comm, chunks):
    for step in range(comm.size - 1):
        comm.send(chunks[(comm.rank - step) % comm.size], to=right(comm))
        comm.recv(into=chunks[(comm.rank - step - 1) % comm.size], source=left(comm))


def d_all_gather(comm, chunks):
    for step in range(comm.size - 1):
        incoming = (comm.rank - step - 1) % comm.size
        comm.exchange(chunks[comm.rank], to=right(comm), into=chunks[incoming], source=left(comm))


def e_all_reduce(comm, x):
    total = x.copy()
    for _ in range(comm.size - 1):
        arrived = np.empty_like(x)
        comm.exchange(total, to=right(comm), into=arrived, source=left(comm))
        total = total + arrived
    return total


def f_all_reduce(comm, x):
    total, passing = x.copy(), x.copy()
    for _ in range(comm.size - 1):
        comm.exchange(passing.copy(), to=right(comm), into=passing, source=left(comm))
        total += passing
    return total


def g_broadcast(comm, vector, root):
    reach = 1
    while reach < comm.size:
        if comm.rank < reach and comm.rank + reach < comm.size:
            comm.send(vector, to=comm.rank + reach)
        elif reach <= comm.rank < 2 * reach:
            comm.recv(into=vector, source=comm.rank - reach)
        reach *= 2


def h_reduce(comm, vector, root, reduce=np.add):
    position = (comm.rank - root) % comm.size
    if position:
        comm.send(vector, to=((position - 1) // 2 + root) % comm.size)
    for child in (2 * position + 1, 2 * position + 2):
        if child < comm.size:
            comm.recv(into=vector, source=(child + root) % comm.size, reduce=reduce)


@stage(sharded=("optimizer",))
def zero1_step(replica, batch):
    tape, weights = replica.tape, replica.state.weights
    replica.zero_grad(batch)
    activations = batch.inputs
    for unit in replica.units:
        activations = tape.forward(unit, weights[unit], activations)
    loss, upstream = tape.loss(replica.loss_name, activations, batch.targets, batch.counted)
    for unit in replica.backward_units:
        upstream, gradient = tape.backward(unit, weights[unit], upstream)
        replica.keep(unit, replica.reduce_scatter(unit, gradient))
    replica.unscale_and_clip()
    for unit in replica.units:
        replica.publish(unit, weights[unit])
        replica.update(unit, replica.own(weights[unit]))
    return loss


@stage(sharded=("optimizer", "gradients", "parameters"))
def zero3_step(replica, batch):
    tape = replica.tape
    replica.zero_grad(batch)
    for part in replica.parts(batch):
        activations = part.inputs
        for unit in replica.units:
            activations = tape.forward(unit, replica.gather(unit), activations)
        loss, upstream = tape.loss(replica.loss_name, activations, part.targets, part.counted)
        for unit in replica.backward_units:
            upstream, gradient = tape.backward(unit, replica.gather(unit), upstream)
            replica.keep_shard(unit, replica.reduce_scatter(unit, gradient))
            del gradient
    replica.unscale_and_clip()
    for unit in replica.units:
        replica.update(unit, replica.state.weights[unit])
    return loss
