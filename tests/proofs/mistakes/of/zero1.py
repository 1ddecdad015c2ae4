"""Stage I with the micro-batches of a rank in one pass."""


def zero1_step(replica, batch):
    tape, weights = replica.tape, replica.state.weights
    replica.zero_grad(batch)
    activations = batch.inputs
    for unit in replica.units:
        activations = tape.forward(unit, weights[unit], activations)
    loss, upstream = tape.loss(replica.loss_name, activations, batch.targets, batch.counted)
    for unit in replica.backward_units:
        upstream, gradient = tape.backward(unit, weights[unit], upstream)
        replica.keep(unit, replica.reduce_scatter(unit, gradient))
    replica.unscale_and_clip()
    for unit in replica.units:
        replica.update(unit, replica.own(weights[unit]))
        replica.publish(unit, weights[unit])
    return loss
