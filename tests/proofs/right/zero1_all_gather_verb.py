"""all_gather instead of publish."""

def zero1_step(replica, batch):
    tape, weights, loss = replica.tape, replica.state.weights, None
    replica.zero_grad(batch)
    for part in replica.parts(batch):
        x = part.inputs
        for unit in replica.units:
            x = tape.forward(unit, weights[unit], x)
        loss, up = tape.loss(replica.loss_name, x, part.targets, part.counted, loss)
        for unit in replica.backward_units:
            up, gradient = tape.backward(unit, weights[unit], up)
            replica.reduce_scatter(unit, gradient)
            replica.keep(unit, gradient)
    replica.unscale_and_clip()
    for unit in replica.units:
        replica.update(unit, replica.own(weights[unit]))
        replica.all_gather(unit, weights[unit])
    return loss
