"""A ring of its own for weights."""

from zerosim.comm import left, right


def gathered(replica, unit):
    comm, shard = replica.comm, replica.state.weights[unit]
    full = replica.full(unit, "parameters")
    rows = full.reshape(comm.size, len(shard))
    rows[comm.rank] = shard
    for step in range(comm.size - 1):
        comm.exchange(rows[(comm.rank - step) % comm.size], to=right(comm),
                      into=rows[(comm.rank - step - 1) % comm.size], source=left(comm))
    return full


def zero3_step(replica, batch):
    tape, shards, loss = replica.tape, replica.state.weights, None
    replica.zero_grad(batch)
    for part in replica.parts(batch):
        x = part.inputs
        for unit in replica.units:
            x = tape.forward(unit, gathered(replica, unit), x)
        loss, up = tape.loss(replica.loss_name, x, part.targets, part.counted, loss)
        for unit in replica.backward_units:
            up, gradient = tape.backward(unit, gathered(replica, unit), up)
            replica.keep_shard(unit, replica.reduce_scatter(unit, gradient))
            del gradient
    replica.unscale_and_clip()
    for unit in replica.units:
        replica.update(unit, shards[unit])
    return loss
