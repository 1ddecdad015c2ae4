"""The gradient is divided by the number of ranks.

Says: 1/2 of what it should be (there are 2 ranks)
Says: never divided or multiplied
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
        gradient = replica.reduce_scatter(unit, gradient)
        gradient /= replica.comm.size
        replica.keep(unit, gradient)
    replica.unscale_and_clip()
    for unit in replica.units:
        replica.update(unit, replica.own(weights[unit]))
        replica.publish(unit, weights[unit])
    return loss
