"""A full buffer with the rank's own chunk in it, and zeros.

Says: weights with only its own shard filled
Says: replica.gather
"""


def zero3_step(replica, batch):
    tape, loss = replica.tape, None
    replica.zero_grad(batch)
    for part in replica.parts(batch):
        activations = part.inputs
        for unit in replica.units:
            weights = replica.full(unit, "parameters")
            weights[:] = 0
            replica.own(weights)[:] = replica.state.weights[unit]
            activations = tape.forward(unit, weights, activations)
        loss, upstream = tape.loss(replica.loss_name, activations, part.targets, part.samples, loss)
        for unit in replica.backward_units:
            upstream, gradient = tape.backward(unit, replica.gather(unit), upstream)
            replica.keep_shard(unit, replica.reduce_scatter(unit, gradient))
    replica.unscale_and_clip()
    for unit in replica.units:
        replica.update(unit, replica.state.weights[unit])
    return loss
