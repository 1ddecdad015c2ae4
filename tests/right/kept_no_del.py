"""Kept weights deleted after their backward."""

def zero3_kept_step(replica, batch):
    tape, kept, loss = replica.tape, {}, None
    replica.zero_grad(batch)
    for part in replica.parts(batch):
        x = part.inputs
        for unit in replica.units:
            kept[unit] = replica.gather(unit)
            x = tape.forward(unit, kept[unit], x)
        loss, up = tape.loss(replica.loss_name, x, part.targets, part.samples, loss)
        for unit in replica.backward_units:
            up, gradient = tape.backward(unit, kept[unit], up)
            del kept[unit]
            replica.keep_shard(unit, replica.reduce_scatter(unit, gradient))
            del gradient
    replica.unscale_and_clip()
    for unit in replica.units:
        replica.update(unit, replica.state.weights[unit])
    return loss
