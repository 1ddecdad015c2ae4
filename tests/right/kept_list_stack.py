"""Kept weights on a stack."""

def zero3_kept_step(replica, batch):
    tape, shards, stack = replica.tape, replica.state.weights, []
    replica.zero_grad(batch)
    x, loss = batch.inputs, None
    for unit in replica.units:
        stack.append((unit, replica.gather(unit)))
        x = tape.forward(*stack[-1], x)
    loss, up = tape.loss(replica.loss_name, x, batch.targets, batch.samples)
    while stack:
        unit, full = stack.pop()
        up, gradient = tape.backward(unit, full, up)
        full = None
        gradient = replica.reduce_scatter(unit, gradient)
        replica.keep_shard(unit, gradient)
        gradient = None
    replica.unscale_and_clip()
    for unit in shards:
        replica.update(unit, shards[unit])
    return loss
