"""Parts as somebody else would write them: the tests of `test_bring.py` name them, and plant faults in them."""

import numpy as np

from zerosim.extend import Layer, Operation, Parameter, collective, constant, linear, silu, stage, uniform


def lion(g, momentum, *, t, h, a, b, beta1=0.9, beta2=0.99):
    np.multiply(momentum, beta1, out=a)
    np.multiply(g, 1.0 - beta1, out=b)
    a += b
    np.sign(a, out=a)
    a *= h.learning_rate
    momentum *= beta2
    np.multiply(g, 1.0 - beta2, out=b)
    momentum += b


def gated(task, *, width=16, depth=2):
    d, bound = task.inputs, uniform(task.inputs**-0.5)

    def block(w, x):
        return x + linear(silu(linear(x, w["gate"])) * linear(x, w["up"]), w["down"])

    def head(w, x):
        return linear(x, w["weight"], w["bias"])

    inner = tuple(Parameter(name, shape, bound) for name, shape in (
        ("gate", (width, d)), ("up", (width, d)), ("down", (d, width))))
    outer = (
        Parameter("weight", (task.outputs, d), bound),
        Parameter("bias", (task.outputs,), constant(0.0), decays=False),
    )
    blocks = [Layer(f"blocks.{n}", f"blocks.{n}.", inner, block) for n in range(depth)]
    return [*blocks, Layer("head", "head.", outer, head)]


@stage(sharded=("optimizer", "gradients"), wire="bf16")
def compressed(replica, batch):
    """Stage II whose gradients travel in bfloat16."""
    tape, weights, loss = replica.tape, replica.state.weights, None
    replica.zero_grad(batch)
    for part in replica.parts(batch):
        activations = part.inputs
        for unit in replica.forward_units:
            activations = tape.forward(unit, weights[unit], activations)
        loss, upstream = tape.loss(replica.loss_name, activations, part.targets, part.counted, loss)
        for unit in replica.backward_units:
            upstream, gradient = tape.backward(unit, weights[unit], upstream, replica.unreduced)
            gradient = replica.at_boundary(part, unit, gradient)
            gradient = replica.reduce_scatter(unit, gradient)
            replica.keep_shard(unit, gradient)
            del gradient
    replica.unscale_and_clip()
    for unit in replica.units:
        replica.update(unit, replica.own(weights[unit]))
        replica.publish(unit, weights[unit])
    return loss


def halves_first(contributions, chunk):
    """(g[c] + g[c + N/2]) + … : each rank's sum so far first, what has come second, half a ring away first."""
    size = len(contributions)

    def held(rank, distance):
        if distance == size:
            return contributions[rank]
        return held(rank, 2 * distance) + held(rank ^ distance, 2 * distance)

    return held(chunk, 1)


@collective(order=halves_first, powers_of_two=True)
def halving_reduce_scatter(comm, chunks):
    """Halve the vector: send the partner's half, add what comes to the own one."""
    low, high, half = 0, comm.size, comm.size // 2
    while half:
        partner = comm.rank ^ half
        middle = low + half
        mine, theirs = ((low, middle), (middle, high)) if comm.rank < middle else ((middle, high), (low, middle))
        kept = chunks[mine[0] : mine[1]]
        comm.exchange(chunks[theirs[0] : theirs[1]], to=partner, into=kept, source=partner, reduce=np.add)
        (low, high), half = mine, half // 2


@collective(powers_of_two=True)
def doubling_all_gather(comm, chunks):
    """Double what is known: exchange it with the partner at a distance that doubles."""
    have = 1
    while have < comm.size:
        partner = comm.rank ^ have
        mine, theirs = comm.rank // have * have, partner // have * have
        comm.exchange(chunks[mine : mine + have], to=partner, into=chunks[theirs : theirs + have], source=partner)
        have *= 2


def spirals(*, count=60, turns=1.5):
    """Two spirals, with noise that is drawn from a seed."""
    random = np.random.default_rng(0)
    t = random.random(count)
    y = np.arange(count) % 2
    angle = 2 * np.pi * turns * t + np.pi * y
    x = np.stack([t * np.cos(angle), t * np.sin(angle)], axis=1) + 0.01 * random.standard_normal((count, 2))
    return {"x": x[10:], "y": y[10:], "x_test": x[:10], "y_test": y[:10]}


def swish_forward(x, *, empty):
    """y = x / (1 + e⁻ˣ)."""
    return np.divide(x, 1.0 + np.exp(-x), out=empty(x.shape, x.dtype))


def swish_backward(upstream, into, *, empty, x):
    """∂L/∂x = upstream σ (1 + x (1 − σ))."""
    sigma = 1.0 / (1.0 + np.exp(-x))
    np.multiply(upstream, sigma * (1.0 + x * (1.0 - sigma)), out=into["x"])


swish = Operation(swish_forward, swish_backward)
EXAMPLES = {"swish": ((3, 4),)}
