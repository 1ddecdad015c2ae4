"""Gradients are noted in backward's order, and reduced in forward's.

Says: gets as its gradient rank 1's own gradient of layers.1; expected rank 1's own gradient of layers.0
Says: pass each unit its own gradient
"""


def zero1_step(replica, batch):
    gradients = []
    tape, weights = replica.tape, replica.state.weights
    replica.zero_grad(batch)
    activations = batch.inputs
    for unit in replica.units:
        activations = tape.forward(unit, weights[unit], activations)
    loss, upstream = tape.loss(replica.loss_name, activations, batch.targets, batch.samples)
    for unit in replica.backward_units:
        upstream, gradient = tape.backward(unit, weights[unit], upstream)
        gradients.append(gradient)
    for unit, gradient in zip(replica.units, gradients, strict=True):
        replica.keep(unit, replica.reduce_scatter(unit, gradient))
    replica.unscale_and_clip()
    for unit in replica.units:
        replica.update(unit, replica.own(weights[unit]))
        replica.publish(unit, weights[unit])
    return loss
