"""Stage III that lets go of what it has gathered and reduced."""


def zero3_step(replica, batch):
    tape, loss = replica.tape, None
    replica.zero_grad(batch)
    for part in replica.parts(batch):
        activations = part.inputs
        for unit in replica.units:
            weights = replica.gather(unit)
            activations = tape.forward(unit, weights, activations)
            del weights
        loss, upstream = tape.loss(replica.loss_name, activations, part.targets, part.counted, loss)
        for unit in replica.backward_units:
            weights = replica.gather(unit)
            upstream, gradient = tape.backward(unit, weights, upstream)
            del weights
            gradient = replica.reduce_scatter(unit, gradient)
            replica.keep_shard(unit, gradient)
            del gradient
    replica.unscale_and_clip()
    for unit in replica.units:
        replica.update(unit, replica.state.weights[unit])
    return loss
