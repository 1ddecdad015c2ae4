"""Updates last to first."""

def zero2_step(replica, batch):
    tape, weights = replica.tape, replica.state.weights
    replica.zero_grad(batch)
    loss = None
    for part in replica.parts(batch):
        x = part.inputs
        for unit in replica.forward_units:
            x = tape.forward(unit, weights[unit], x)
        loss, up = tape.loss(replica.loss_name, x, part.targets, part.samples, loss)
        for unit in reversed(replica.units):
            up, gradient = tape.backward(unit, weights[unit], up)
            gradient = replica.reduce(unit, gradient)
            replica.keep_shard(unit, gradient)
            del gradient
    replica.unscale_and_clip()
    for unit in reversed(replica.units):
        shard = replica.own(weights[unit])
        replica.update(unit, shard)
    for unit in replica.units:
        replica.publish(unit, weights[unit])
    return loss
