"""All gathered weights are kept until the end of the step.

Says: del weights
"""


def zero3_step(replica, batch):
    tape, loss, held = replica.tape, None, []
    replica.zero_grad(batch)
    for part in replica.parts(batch):
        activations = part.inputs
        for unit in replica.units:
            held.append(replica.gather(unit))
            activations = tape.forward(unit, held[-1], activations)
        loss, upstream = tape.loss(replica.loss_name, activations, part.targets, part.samples, loss)
        for unit in replica.backward_units:
            upstream, gradient = tape.backward(unit, replica.gather(unit), upstream)
            replica.keep_shard(unit, replica.reduce_scatter(unit, gradient))
    replica.unscale_and_clip()
    for unit in replica.units:
        replica.update(unit, replica.state.weights[unit])
    return loss
