"""Stage III that gives gathered weights no name."""


def zero3_step(replica, batch):
    tape, loss = replica.tape, None
    replica.zero_grad(batch)
    for part in replica.parts(batch):
        activations = part.inputs
        for unit in replica.units:
            activations = tape.forward(unit, replica.gather(unit), activations)
        loss, upstream = tape.loss(replica.loss_name, activations, part.targets, part.counted, loss)
        for unit in replica.backward_units:
            upstream, gradient = tape.backward(unit, replica.gather(unit), upstream)
            replica.keep_shard(unit, replica.reduce_scatter(unit, gradient))
    replica.unscale_and_clip()
    for unit in replica.units:
        replica.update(unit, replica.state.weights[unit])
    return loss
