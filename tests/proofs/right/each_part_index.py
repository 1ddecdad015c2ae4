"""Micro-batches as slices."""

def zero2_each_part_step(replica, batch):
    replica.zero_grad(batch)
    loss = None
    for m in range(len(batch.inputs)):
        x = batch.inputs[m:m + 1]
        for unit in replica.units:
            x = replica.tape.forward(unit, replica.state.weights[unit], x)
        loss, up = replica.tape.loss(replica.loss_name, x, batch.targets[m:m + 1], batch.samples, loss)
        for unit in replica.backward_units:
            up, gradient = replica.tape.backward(unit, replica.state.weights[unit], up)
            gradient = replica.reduce_scatter(unit, gradient)
            replica.keep_shard(unit, gradient)
            del gradient
    replica.unscale_and_clip()
    for unit in replica.units:
        replica.update(unit, replica.own(replica.state.weights[unit]))
        replica.publish(unit, replica.state.weights[unit])
    return loss
