"""Rank 0 begins with another collective than the others.

Says: all ranks must call the same collectives
"""


def zero3_step(replica, batch):
    tape, loss = replica.tape, None
    replica.zero_grad(batch)
    activations = batch.inputs
    if replica.comm.rank == 0 and replica.comm.size > 1:
        replica.reduce_scatter(replica.units[0], replica.full(replica.units[0], "gradients"))
    for unit in replica.units:
        activations = tape.forward(unit, replica.gather(unit), activations)
    loss, upstream = tape.loss(replica.loss_name, activations, batch.targets, batch.samples)
    for unit in replica.backward_units:
        upstream, gradient = tape.backward(unit, replica.gather(unit), upstream)
        replica.keep_shard(unit, replica.reduce_scatter(unit, gradient))
    replica.unscale_and_clip()
    for unit in replica.units:
        replica.update(unit, replica.state.weights[unit])
    return loss
