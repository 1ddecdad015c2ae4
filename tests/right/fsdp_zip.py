"""Pairs by zip, rows in a list."""

import numpy as np

from zerosim.comm import left, right


def both(replica, pair):
    comm = replica.comm
    mine = np.concatenate([replica.state.weights[u] for u in pair])
    table = [None] * comm.size
    table[comm.rank] = mine
    for s in range(comm.size - 1):
        arrived = np.empty_like(mine)
        comm.exchange(table[(comm.rank - s) % comm.size], to=right(comm), into=arrived, source=left(comm))
        table[(comm.rank - s - 1) % comm.size] = arrived
    cut = len(replica.state.weights[pair[0]])
    halves = [np.concatenate([row[:cut] for row in table])]
    if len(pair) == 2:
        halves.append(np.concatenate([row[cut:] for row in table]))
    return dict(zip(pair, halves, strict=True))


def fsdp_step(replica, batch):
    tape, loss = replica.tape, None
    replica.zero_grad(batch)
    units = list(replica.units)
    pairs = list(zip(units[::2], units[1::2], strict=False)) + ([(units[-1],)] if len(units) % 2 else [])
    for part in replica.parts(batch):
        x = part.inputs
        for pair in pairs:
            full = both(replica, pair)
            for unit in pair:
                x = tape.forward(unit, full[unit], x)
        loss, up = tape.loss(replica.loss_name, x, part.targets, part.samples, loss)
        for pair in pairs[::-1]:
            full = both(replica, pair)
            for unit in pair[::-1]:
                up, gradient = tape.backward(unit, full[unit], up)
                gradient = replica.reduce_scatter(unit, gradient)
                replica.keep_shard(unit, gradient)
                del gradient
    replica.unscale_and_clip()
    for unit in units:
        replica.update(unit, replica.state.weights[unit])
    return loss
