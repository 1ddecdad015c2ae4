"""The optimizer is let loose on all weights, and has the state of a shard.

Says: update got 8 elements of layers.0; expected 4
Says: replica.own(full)
"""


def zero1_step(replica, batch):
    tape, weights = replica.tape, replica.state.weights
    replica.zero_grad(batch)
    activations = batch.inputs
    for unit in replica.units:
        activations = tape.forward(unit, weights[unit], activations)
    loss, upstream = tape.loss(replica.loss_name, activations, batch.targets, batch.samples)
    for unit in replica.backward_units:
        upstream, gradient = tape.backward(unit, weights[unit], upstream)
        replica.keep(unit, replica.reduce_scatter(unit, gradient))
    replica.unscale_and_clip()
    for unit in replica.units:
        replica.update(unit, weights[unit])
        replica.publish(unit, weights[unit])
    return loss
