"""Helpers for forward and backward."""

def forward(replica, part):
    x = part.inputs
    for unit in replica.units:
        x = replica.tape.forward(unit, replica.state.weights[unit], x)
    return x


def backward(replica, up):
    for unit in replica.backward_units:
        up = one(replica, unit, up)


def one(replica, unit, up):
    up, gradient = replica.tape.backward(unit, replica.state.weights[unit], up)
    replica.keep_shard(unit, replica.reduce_scatter(unit, gradient))
    return up


def zero2_step(replica, batch):
    replica.zero_grad(batch)
    loss = None
    for part in replica.parts(batch):
        loss, up = replica.tape.loss(replica.loss_name, forward(replica, part), part.targets, part.samples, loss)
        backward(replica, up)
    replica.unscale_and_clip()
    for unit, full in replica.state.weights.items():
        replica.update(unit, replica.own(full))
        replica.publish(unit, full)
    return loss
