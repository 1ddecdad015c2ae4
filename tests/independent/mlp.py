"""A second trainer, written from `docs/computation.md` alone and in its order: one process, plain loops, every bit.

It shares nothing with zerosim, so that a fault there is not repeated here. A micro-batch's flat gradient of a unit is
its *contribution*; a rank's contributions add up to its *total*; *kept* is the dtype of weights and gradients, and
*computed* that of the weights that are computed with.
"""

import math
from dataclasses import dataclass
from types import SimpleNamespace

import ml_dtypes
import numpy as np

F32 = np.float32
DTYPES = {"fp64": np.float64, "fp32": F32, "fp16": np.float16, "bf16": ml_dtypes.bfloat16}
GROWTH_INTERVAL = 2000
DEFAULTS = SimpleNamespace(  # the keys of a scenario that decide bits
    ranks=4, stage="ddp",
    hidden=[64, 64], activation="relu", frozen=[], tied_embeddings=False,
    steps=20, micro_batch=16, micro_batches=4, seed=0,
    optimizer="adam", learning_rate=1e-3, betas=[0.9, 0.999], epsilon=1e-8, momentum=0.9, weight_decay=None,
    decay_biases=True, schedule="constant", warmup_steps=0, clip_norm=0, precision="fp32", loss_scale="dynamic",
    order="ring", units="layer", accumulation="boundary", accumulate_dtype="weights", reduce_dtype="weights",
    publish="weights", param_dtype="weights", autocast="none", output_dtype="weights",
)


def settled(**given):
    """All keys, and what follows from them."""
    keys = SimpleNamespace(**vars(DEFAULTS) | given)
    keys.half = keys.precision in ("fp16", "bf16")
    keys.kept = DTYPES[keys.precision]
    keys.wide = np.float64 if keys.precision == "fp64" else F32  # what the page calls f32
    cast = keys.param_dtype != "weights" and keys.stage == "zero3"
    keys.computed = DTYPES[keys.param_dtype] if cast else keys.kept
    keys.products = DTYPES.get(keys.autocast, keys.computed)
    given_or_computed = DTYPES | {"weights": keys.computed}
    keys.wire, keys.output = given_or_computed[keys.reduce_dtype], given_or_computed[keys.output_dtype]
    keys.reduced = keys.wide if keys.accumulate_dtype == "fp32" else keys.kept  # what the norm and the optimizer see
    widened = keys.accumulate_dtype == "fp32" or (cast and keys.wire == F32)
    keys.summed = keys.wide if widened else keys.computed
    keys.each = keys.micro_batches // keys.ranks
    keys.part_by_part = keys.accumulation == "micro_batch" and keys.stage in ("zero2", "zero3")
    keys.gathers_updates = keys.publish == "updates" and keys.stage in ("zero1", "zero2") and keys.half
    keys.decoupled = keys.optimizer == "adamw"
    if keys.weight_decay is None:
        keys.weight_decay = 0.01 if keys.decoupled else 0.0
    return keys


def one_nan(a):
    """a, with the same bits in each NaN."""
    infinity = np.array(np.inf, a.dtype)[()]
    return np.where(np.isnan(a), infinity - infinity, a)


# Data and model


def initial_layer(seed, i, inputs, outputs):
    flat = np.random.default_rng([seed, i]).random(outputs * inputs + outputs, dtype=F32)
    bound = 1.0 / math.sqrt(inputs)
    flat *= 2.0 * bound
    flat -= bound
    return flat[:-outputs].reshape(outputs, inputs), flat[-outputs:]


def micro_batches_of_steps(keys, samples):
    """Indices of samples, of shape (steps, micro_batches, micro_batch)."""
    shape = (keys.steps, keys.micro_batches, keys.micro_batch)
    epochs = math.ceil(math.prod(shape) / samples)
    stream = [np.random.default_rng([keys.seed, epoch]).permutation(samples) for epoch in range(epochs)]
    return np.concatenate([np.empty(0, np.int64), *stream])[: math.prod(shape)].reshape(shape)


@dataclass
class Parameter:
    """A tensor of weights: as computed with, its master copy (f32, or f64), the optimizer's state."""

    name: str
    computed: np.ndarray
    master: np.ndarray
    momentum: np.ndarray
    variance: np.ndarray

    @classmethod
    def of(cls, keys, name, initial):
        master = initial.astype(keys.wide)
        return cls(name, master.astype(keys.computed), master, np.zeros_like(master), np.zeros_like(master))


def initial_layers(keys, inputs, outputs):
    """Weight and bias of each layer, float32, by name."""
    widths, layers = [inputs, *keys.hidden, outputs], []
    for i in range(len(widths) - 1):
        w, b = initial_layer(keys.seed, i, widths[i], widths[i + 1])
        layers.append({f"layers.{i}.weight": w, f"layers.{i}.bias": b})
    return layers


def trained_units(keys, count):
    """The layers of each unit that is not frozen: [[0, 1], [2]]."""
    single = [[i] for i in range(count)]
    if keys.tied_embeddings:
        single = [[0, count - 1], *single[1:-1]]
    whole = {"layer": single, "model": [list(range(count))]}
    units = whole[keys.units] if isinstance(keys.units, str) else keys.units
    return [unit for unit in units if not set(unit) & set(keys.frozen)]


# Forward and backward, all in float32


def linear(x, w, b):
    y = np.matmul(x, w.T)
    y += b
    return y


def linear_backward(u, x, w):
    return np.matmul(u.T, x), np.sum(u, axis=0), np.matmul(u, w)


ROOT, CUBIC = math.sqrt(2.0 / math.pi), 0.044715


def gelu_tanh(x):
    t = np.square(x)
    t *= CUBIC
    t += 1.0
    t *= x
    t *= ROOT
    return np.tanh(t)


def gelu(x):
    y = gelu_tanh(x)
    y += 1.0
    y *= x
    y *= 0.5
    return y


def gelu_backward(u, x):
    t = gelu_tanh(x)
    s = np.square(t)
    s = 1.0 - s
    s *= x
    q = x * x
    q *= 3.0 * CUBIC * ROOT
    q += ROOT
    s *= q
    s += t
    s += 1.0
    s *= 0.5
    return u * s


def erf(x):
    return np.array([math.erf(v) for v in (x * math.sqrt(0.5)).ravel().tolist()], x.dtype).reshape(x.shape)


def gelu_exact(x):
    return (erf(x) + 1.0) * x * 0.5


def gelu_exact_backward(u, x):
    bell = np.exp(np.square(x) * -0.5) * x * (1.0 / math.sqrt(2.0 * math.pi))
    return ((erf(x) + 1.0) * 0.5 + bell) * u


FORWARD = {"relu": lambda x: np.maximum(x, 0.0), "tanh": np.tanh, "gelu": gelu,
           "gelu_exact": gelu_exact}
BACKWARD = {"relu": lambda u, y: u * (y > 0.0), "tanh": lambda u, y: u * (1.0 - np.square(y)), "gelu": gelu_backward,
            "gelu_exact": gelu_exact_backward}


def cross_entropy(o, labels, samples):
    at = np.arange(len(o)), labels
    u = o - o.max(axis=1, keepdims=True)
    logits = u[at]
    u = np.exp(u)
    totals = u.sum(axis=1)
    loss = np.sum(np.log(totals) - logits, keepdims=True) * (1.0 / samples)
    u /= totals[:, np.newaxis]
    u[at] -= 1.0
    u *= 1.0 / samples
    return loss, u


def mean_squared_error(o, targets, samples):
    numbers = samples * o.shape[1]
    u = o - targets
    loss = np.sum(np.square(u).ravel(), keepdims=True) * (1.0 / numbers)
    u *= 2.0 / numbers
    return loss, u


def contribution(keys, layers, x, targets, scale):
    """The loss of a micro-batch, and of each layer down to the lowest that is trained [dW, db], as computed."""

    def wide(a):
        return a.astype(keys.wide)

    def rounded(a):
        return a.astype(keys.products)

    last = len(layers) - 1
    x, inputs, activation_keeps = rounded(x), [], []
    for i, (w, b) in enumerate(layers):
        inputs.append(x)
        x = rounded(linear(wide(x), wide(rounded(w.computed)), wide(rounded(b.computed))))
        if i < last:
            before, x = x, rounded(FORWARD[keys.activation](wide(x)))
            activation_keeps.append(before if keys.activation.startswith("gelu") else x)

    criterion = cross_entropy if targets.dtype == np.int64 else mean_squared_error
    loss, u = criterion(wide(x.astype(keys.output)), targets, keys.micro_batches * keys.micro_batch)
    if scale != 1.0:
        u *= scale
    u = rounded(u.astype(keys.output))

    gradients = {}
    lowest = min(set(range(len(layers))) - set(keys.frozen), default=len(layers))
    for i in range(last, lowest - 1, -1):
        if i < last:
            u = rounded(BACKWARD[keys.activation](wide(u), wide(activation_keeps[i])))
        *of_layer, u = map(rounded, linear_backward(wide(u), wide(inputs[i]), wide(rounded(layers[i][0].computed))))
        gradients[i] = [each.astype(keys.computed) for each in of_layer]
    return loss, gradients


# Addition


def left_to_right(parts):
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def halves(parts):
    if len(parts) == 1:
        return parts[0]
    middle = len(parts) // 2
    return halves(parts[:middle]) + halves(parts[middle:])


def from_the_next(totals, chunk):
    return left_to_right(totals[chunk + 1 :] + totals[: chunk + 1])


WITHIN = {"ring": left_to_right, "rank": left_to_right, "tree": halves}
ACROSS = {
    "ring": from_the_next,
    "rank": lambda totals, chunk: left_to_right(totals),
    "tree": lambda totals, chunk: halves(totals),
}


def chunks(flat, ranks):
    length = math.ceil(len(flat) / ranks)
    return [flat[c * length : (c + 1) * length] for c in range(ranks)]


def add_ranks(keys, totals):
    """Totals, one of each rank, added chunk by chunk."""
    of_ranks = [chunks(total, keys.ranks) for total in totals]
    sums = [ACROSS[keys.order]([cuts[c] for cuts in of_ranks], c) for c in range(keys.ranks)]
    return np.concatenate(sums)


def exact(parts):
    """The sum of all parts in fixed point under a common exponent of each element: no order plays a part."""
    x = np.stack(parts).astype(np.float64)
    bits = 62 - (len(parts) - 1).bit_length()
    exponent = np.where(np.isfinite(x) & (x != 0), np.frexp(x)[1], -(10**6)).max(axis=0)
    exponent[exponent == -(10**6)] = 0
    scaled = np.ldexp(np.where(np.isfinite(x), x, 0.0), bits - exponent)
    whole = np.rint(scaled)
    total = whole.astype(np.int64).sum(axis=0)
    if parts[0].dtype == np.float64:
        finer = np.rint(np.ldexp(scaled - whole, bits)).astype(np.int64).sum(axis=0)
        result = np.ldexp(of_two_integers(total, finer, bits), exponent - bits)
    else:
        result = np.ldexp(total.astype(np.float64), exponent - bits)

    result[np.all((x == 0) & np.signbit(x), axis=0)] = -0.0
    up, down = np.any(x == np.inf, axis=0), np.any(x == -np.inf, axis=0)
    result[up], result[down] = np.inf, -np.inf
    result[np.any(np.isnan(x), axis=0) | (up & down)] = np.nan
    if parts[0].dtype == ml_dtypes.bfloat16:
        result = result.astype(F32)
    return result.astype(parts[0].dtype)


def of_two_integers(total, finer, bits):
    high = (total + 2**31) // 2**32
    low = (total - high * 2**32).astype(np.float64)
    low += np.ldexp(finer.astype(np.float64), -bits)
    return np.ldexp(high.astype(np.float64), 32) + low


def sum_of(keys, contributions):
    """The gradient of a unit: M contributions, added in the declared order."""
    g = [a.astype(keys.summed) for a in contributions]
    if keys.order == "exact":
        return exact(g).astype(keys.reduced)
    of_ranks = [g[r * keys.each :][: keys.each] for r in range(keys.ranks)]
    if keys.part_by_part:
        parts = [add_ranks(keys, [a[k].astype(keys.wire) for a in of_ranks]) for k in range(keys.each)]
        return left_to_right([part.astype(keys.reduced) for part in parts])
    totals = [WITHIN[keys.order](a).astype(keys.wire) for a in of_ranks]
    return add_ranks(keys, totals).astype(keys.reduced)


def sum_of_losses(keys, losses):
    if keys.order == "exact":
        return exact(losses)
    totals = [WITHIN[keys.order](losses[r * keys.each :][: keys.each]) for r in range(keys.ranks)]
    return ACROSS[keys.order](totals, 0)


# One factor for all gradients


def sum_of_squares(keys, gradients):
    total = 0.0
    for gradient in gradients:
        for chunk in chunks(gradient, keys.ranks):
            part = 0.0
            for start in range(0, len(chunk), 16384):
                part += float(np.sum(np.square(chunk[start : start + 16384].astype(np.float64))))
            total += part
    return total


def initial_scale(keys):
    dynamic = keys.loss_scale == "dynamic" and keys.products == np.float16
    static = 1.0 if keys.loss_scale == "dynamic" else keys.loss_scale
    return SimpleNamespace(dynamic=dynamic, s=65536.0 if dynamic else static, good=0)


def factor(keys, scale, gradients):
    """What undoes the loss scale and clips; None where the step is skipped. Sets a dynamic scale for the next step."""
    f = 1.0 / scale.s
    if scale.dynamic or keys.clip_norm:
        total = sum_of_squares(keys, gradients)
        if scale.dynamic and not math.isfinite(total):
            scale.s, scale.good = max(scale.s / 2.0, 2.0**-24), 0
            return None
        if keys.clip_norm:
            f *= min(1.0, keys.clip_norm / (math.sqrt(total) * f + 1e-6))
        if scale.dynamic:
            scale.good += 1
            if scale.good == GROWTH_INTERVAL:
                scale.s, scale.good = scale.s * 2.0, 0
    return f


# The update


def rate_of(keys, step):
    if step <= keys.warmup_steps:
        return keys.learning_rate * step / keys.warmup_steps
    if keys.schedule == "constant":
        return keys.learning_rate
    done = (step - keys.warmup_steps) / (keys.steps - keys.warmup_steps)
    return keys.learning_rate * (0.5 + 0.5 * math.cos(math.pi * done))


def sgd(keys, g, m, v, rate, count):
    return g * rate


def momentum(keys, g, m, v, rate, count):
    m *= keys.momentum
    m += g
    return m * rate


def adam(keys, g, m, v, rate, count):
    first, second = keys.betas
    m *= first
    m += g * (1.0 - first)
    v *= second
    v += np.square(g) * (1.0 - second)
    d = np.sqrt(v)
    d /= math.sqrt(1.0 - second**count)
    d += keys.epsilon
    d = m / d
    d *= rate / (1.0 - first**count)
    return d


DIFFERENCE = {"sgd": sgd, "momentum": momentum, "adam": adam, "adamw": adam}


def apply(w, d, decay):
    if decay != 1.0:
        w *= decay
    w -= d


def update(keys, parameter, gradient, f, rate, count):
    w, computed = parameter.master, parameter.computed
    decay = keys.weight_decay if w.ndim == 2 or keys.decay_biases else 0.0
    g = gradient.astype(keys.wide)
    if f != 1.0:
        g *= f
    g = one_nan(g)
    if decay and not keys.decoupled:
        g += w * decay
    d = DIFFERENCE[keys.optimizer](keys, g, parameter.momentum, parameter.variance, rate, count)
    shrink = 1.0 - rate * decay if keys.decoupled else 1.0
    apply(w, d, shrink)
    if keys.gathers_updates:
        apply(computed, d.astype(keys.computed), shrink)
    else:
        computed[...] = w.astype(keys.computed)


# Training


def train(x, y, **given):
    """Final weights by name in model order, the loss of every step, and how many updates were made."""
    keys = settled(**given)

    def contributions(layers, step, batch, scale):
        return [contribution(keys, layers, x[at].astype(keys.computed), y[at], scale) for at in batch]

    initial = initial_layers(keys, x.shape[1], y.max() + 1 if y.dtype == np.int64 else y.shape[1])
    return trained(keys, len(x), initial, contributions)


@np.errstate(all="ignore")
def trained(keys, samples, initial, contributions):
    """What `train` returns, of layers that begin as `initial`, {name: float32 array} each.

    `contributions(layers, step, batch, scale)` gives the loss of each micro-batch, and gradients of layers by number;
    batch has indices of samples, of shape (micro_batches, micro_batch).
    """
    layers = [[Parameter.of(keys, name, value) for name, value in layer.items()] for layer in initial]
    units = trained_units(keys, len(layers))
    scale, losses, count = initial_scale(keys), [], 0
    for step, batch in enumerate(micro_batches_of_steps(keys, samples), start=1):
        found = contributions(layers, step, batch, scale.s)
        losses.append(one_nan(sum_of_losses(keys, [loss for loss, _ in found]))[0])
        sums = []
        for unit in units:
            flat = [np.concatenate([a.ravel() for i in unit for a in gradients[i]]) for _, gradients in found]
            sums.append(sum_of(keys, flat))
        f = factor(keys, scale, sums)
        if f is None:
            continue
        count += 1
        for unit, flat in zip(units, sums, strict=True):
            parameters = [parameter for i in unit for parameter in layers[i]]
            pieces = np.split(flat, np.cumsum([parameter.master.size for parameter in parameters])[:-1])
            for parameter, piece in zip(parameters, pieces, strict=True):
                update(keys, parameter, piece.reshape(parameter.master.shape), f, rate_of(keys, step), count)
    kept = "master" if keys.computed != keys.kept else "computed"
    return {parameter.name: getattr(parameter, kept) for layer in layers for parameter in layer}, losses, count
