"""Stage I that adds up the micro-batches of a rank, and then reduces."""


def zero1_step(replica, batch):
    tape, weights, loss = replica.tape, replica.state.weights, None
    replica.zero_grad(batch)
    for part in replica.parts(batch):
        activations = part.inputs
        for unit in replica.units:
            activations = tape.forward(unit, weights[unit], activations)
        loss, upstream = tape.loss(replica.loss_name, activations, part.targets, part.counted, loss)
        for unit in replica.backward_units:
            upstream, gradient = tape.backward(unit, weights[unit], upstream)
            replica.keep(unit, gradient)
    for unit in replica.units:
        replica.reduce_scatter(unit, replica.state.gradients[unit])
    replica.unscale_and_clip()
    for unit in replica.units:
        replica.update(unit, replica.own(weights[unit]))
        replica.publish(unit, weights[unit])
    return loss
