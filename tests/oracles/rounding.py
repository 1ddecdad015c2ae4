"""How far rounding may carry two right implementations of a network apart.

    u        half the distance of neighbours at 1: 2⁻²⁴ in float32, 2⁻¹¹ in float16, 2⁻⁸ in bfloat16
    spread   the standard deviation, number by number, of answers whose every rounding fell otherwise

An a priori bound multiplies |W| by |W| and soon says nothing in 16 bits. So the network is computed in float64 many
times, and at each place where implementations round, by up to half a unit of the last place, something of that size is
added at random (Parker, "Monte Carlo arithmetic", 1997). Sums in float32 may run in any order: to each is added up to u
times the sum of its terms' magnitudes, about what n roundings of partial sums come to.

Two implementations are √2 spreads apart, and the largest of 10⁴ normal deviates is 4 standard deviations from 0; hence
`SPREADS`.
"""

import math

import numpy as np

SPREADS = 6.0
SAMPLES = 64
FLOAT32 = 2.0**-24
UNITS = {"float32": (FLOAT32, -126), "float16": (2.0**-11, -14), "bfloat16": (2.0**-8, -126)}
"""u, and the least exponent of a normal number, below which neighbours come no closer."""


def excess(found, recorded, spread):
    """The largest distance between two answers in units of what rounding permits: up to 1 is agreement."""
    distance = np.abs(np.asarray(found, np.float64) - np.asarray(recorded, np.float64))
    permitted = np.where(spread > 0, SPREADS * spread, np.finfo(np.float64).tiny)
    return float(np.max(distance / permitted))


class Rounding:
    """Samples of what one rounding more may make of a number."""

    def __init__(self, dtype):
        self.unit, self.lowest = UNITS[dtype]
        self.random = np.random.RandomState(0)

    def __call__(self, x, magnitude=0.0):
        """x from a float32 sum of terms of such `magnitude` together, rounded to the dtype."""
        x = self.single(x, magnitude)
        _, exponent = np.frexp(x)
        half = np.ldexp(self.unit, np.maximum(exponent - 1, self.lowest))
        return x + np.where(x == 0.0, 0.0, half * self.noise(x.shape))

    def single(self, x, magnitude):
        """x from a float32 sum of terms of such `magnitude` together."""
        return x + FLOAT32 * magnitude * self.noise(x.shape)

    def noise(self, shape):
        return self.random.uniform(-1.0, 1.0, shape)


def spreads(network, parameters, x, targets, dtype):
    """The spread of the loss, and of the outputs and gradients as one vector; all inputs are exact."""
    rounding = Rounding(dtype)
    x = np.broadcast_to(x, (SAMPLES, *x.shape))
    inputs, kept = [], []
    for weight, bias in parameters:
        inputs.append(x)
        x = rounding(x @ weight.T + bias, np.abs(x) @ np.abs(weight.T) + np.abs(bias))
        if len(inputs) < len(parameters):
            x, slope, magnitude = ACTIVATIONS[network.activation](x, rounding)
            kept.append((slope, magnitude))
    outputs = x
    loss, upstream = LOSSES[network.loss](outputs, targets, rounding)
    gradients = []
    for (weight, _), x in zip(reversed(parameters), reversed(inputs), strict=True):
        if gradients:
            slope, magnitude = kept.pop()
            upstream = upstream * slope if magnitude is None else rounding(
                upstream * slope, np.abs(upstream) * magnitude)
        transposed = upstream.swapaxes(1, 2)
        gradients.insert(0, rounding(upstream.sum(axis=1), np.abs(upstream).sum(axis=1)))
        gradients.insert(0, rounding(transposed @ x, np.abs(transposed) @ np.abs(x)))
        upstream = rounding(upstream @ weight, np.abs(upstream) @ np.abs(weight))
    answers = [array.reshape(SAMPLES, -1) for array in (outputs, *gradients)]
    return np.std(loss), np.std(np.concatenate(answers, axis=1), axis=0)


def relu(x, rounding):
    """y, y′, and of what magnitude the terms of y′ are: None, since 0 and 1 are exact."""
    return np.maximum(x, 0.0), x > 0.0, None


def tanh(x, rounding):
    y = rounding(np.tanh(x), np.abs(np.tanh(x)))
    return y, 1.0 - y**2, 1.0 + y**2


def gelu(x, rounding):
    root, cubic = math.sqrt(2.0 / math.pi), 0.044715
    t = np.tanh(root * (x + cubic * x**3))
    inner = x * root * (1.0 + 3.0 * cubic * x**2)
    slope = 0.5 * (1.0 + t + (1.0 - t**2) * inner)
    return rounding(0.5 * x * (1.0 + t), np.abs(x)), slope, 1.0 + np.abs(inner)


def cross_entropy(outputs, classes, rounding):
    """The loss of each sample of outputs, and the rounded gradient of the outputs."""
    rows = np.arange(len(classes))
    shifted = outputs - outputs.max(axis=2, keepdims=True)
    totals = np.exp(shifted).sum(axis=2, keepdims=True)
    losses = np.log(totals[:, :, 0]) - shifted[:, rows, classes]
    chosen = np.zeros(outputs.shape[1:])
    chosen[rows, classes] = 1.0
    softmax = np.exp(shifted) / totals
    upstream = rounding((softmax - chosen) / len(rows), (softmax + chosen) / len(rows))
    return rounding.single(losses.mean(axis=1), (1.0 + np.abs(outputs).max(axis=2)).mean(axis=1)), upstream


def mean_squared_error(outputs, targets, rounding):
    difference = outputs - targets
    scale = 2.0 / targets.size
    upstream = rounding(scale * difference, scale * (np.abs(outputs) + np.abs(targets)))
    loss = np.mean(difference**2, axis=(1, 2))
    return rounding.single(loss, loss), upstream


ACTIVATIONS = {"relu": relu, "tanh": tanh, "gelu": gelu}
LOSSES = {"cross_entropy": cross_entropy, "mean_squared_error": mean_squared_error}
