"""An all-gather of its own."""

from zerosim.comm import left, right


def zero1_step(replica, batch):
    tape, weights, loss = replica.tape, replica.state.weights, None
    replica.zero_grad(batch)
    for part in replica.parts(batch):
        x = part.inputs
        for unit in replica.units:
            x = tape.forward(unit, weights[unit], x)
        loss, up = tape.loss(replica.loss_name, x, part.targets, part.samples, loss)
        for unit in replica.backward_units:
            up, gradient = tape.backward(unit, weights[unit], up)
            replica.reduce_scatter(unit, gradient)
            replica.keep(unit, gradient)
    replica.unscale_and_clip()
    for unit in replica.units:
        full = weights[unit]
        replica.update(unit, replica.own(full))
        gather(replica.comm, full.reshape(replica.comm.size, -1))
    return loss


def gather(comm, rows):
    for step in range(comm.size - 1):
        comm.exchange(rows[(comm.rank - step) % comm.size], to=right(comm),
                      into=rows[(comm.rank - step - 1) % comm.size], source=left(comm))
