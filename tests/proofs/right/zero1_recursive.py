"""Forward and backward by recursion."""

def zero1_step(replica, batch):
    replica.zero_grad(batch)
    units, weights, tape = list(replica.units), replica.state.weights, replica.tape

    def through(number, x, part, loss):
        if number == len(units):
            return tape.loss(replica.loss_name, x, part.targets, part.samples, loss)
        unit = units[number]
        loss, up = through(number + 1, tape.forward(unit, weights[unit], x), part, loss)
        up, gradient = tape.backward(unit, weights[unit], up)
        gradient = replica.reduce_scatter(unit, gradient)
        replica.keep(unit, gradient)
        return loss, up

    loss = None
    for part in replica.parts(batch):
        loss, _ = through(0, part.inputs, part, loss)
    replica.unscale_and_clip()
    for unit in units:
        mine = replica.own(weights[unit])
        replica.update(unit, mine)
        replica.publish(unit, weights[unit])
    return loss
