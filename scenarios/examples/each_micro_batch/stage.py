"""Stage II that reduces each micro-batch, with gradients that travel in bfloat16: half the bytes, different bits."""

from zerosim.extend import stage


@stage(sharded=("optimizer", "gradients"), wire="bf16", accumulation="micro_batch")
def step(replica, batch):
    """Stage II that reduces every micro-batch in bfloat16."""
    tape, weights, loss = replica.tape, replica.state.weights, None
    replica.zero_grad(batch)

    for part in replica.parts(batch):
        activations = part.inputs
        for unit in replica.forward_units:
            activations = tape.forward(unit, weights[unit], activations)
        loss, upstream = tape.loss(replica.loss_name, activations, part.targets, part.counted, loss)

        for unit in replica.backward_units:
            upstream, gradient = tape.backward(unit, weights[unit], upstream, replica.unreduced)
            gradient = replica.reduce_scatter(unit, gradient)
            replica.keep_shard(unit, gradient)
            del gradient

    replica.unscale_and_clip()
    for unit in replica.units:
        replica.update(unit, replica.own(weights[unit]))
        replica.publish(unit, weights[unit])
    return loss
