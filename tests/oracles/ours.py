"""zerosim's answers to `cases`."""

import numpy as np

from tests.oracles import cases
from tests.oracles.answers import NUMPY
from zerosim.autograd.tape import Tape
from zerosim.models.mlp import mlp
from zerosim.optim.optimizers import OPTIMIZERS, Hyperparameters
from zerosim.optim.scaling import INITIAL_SCALE, Scaling, square_sum


def ask():
    """All answers, as `answers` describes them."""
    exponents, taken = loss_scales()
    return {**networks(), "updates": updates(), "clipped": clipped(), "loss scales": exponents, "taken": taken}


def networks():
    """Of each dtype: the losses of all networks, and all their vectors one after another."""
    found = {}
    for name, dtype in NUMPY.items():
        losses, vectors = zip(*(answers_of(network, dtype) for network in cases.NETWORKS), strict=True)
        found[f"{name} losses"] = np.array(losses)
        found[f"{name} answers"] = np.concatenate(vectors)
    return found


def answers_of(network, dtype):
    """The loss, and outputs and gradients in one float32 vector, of a tape that works in `dtype`."""
    inputs, *hidden, outputs = network.widths
    units = mlp(inputs, hidden, outputs, network.activation, network.loss).units
    flat = [np.concatenate([w.ravel(), b]).astype(dtype) for w, b in network.parameters()]
    x, targets = network.batch()
    tape, activations = Tape(), [x.astype(dtype)]
    for unit, weights in zip(units, flat, strict=True):
        activations = tape.forward(unit, weights, activations)
    vector = [activations[0].copy()]
    loss, upstreams = tape.loss(network.loss, activations, [targets], cases.ROWS)
    for unit, weights in zip(reversed(units), reversed(flat), strict=True):
        upstreams, gradient = tape.backward(unit, weights, upstreams)
        vector.insert(1, gradient)
    assert {array.dtype for array in vector} == {np.dtype(dtype)}
    assert loss.dtype == np.float32
    return loss[0], np.concatenate([array.ravel() for array in vector]).astype(np.float32)


def updates():
    """The weights after each step, one optimizer after another."""
    found = []
    for name, h in cases.OPTIMIZERS:
        weights, gradients = cases.trajectory()
        state = {slot: np.zeros_like(weights) for slot in OPTIMIZERS[name].slots}
        for step, gradient in enumerate(gradients, start=1):
            OPTIMIZERS[name].update(weights, gradient, state, step, Hyperparameters(**h))
            found.append(weights.copy())
    return np.reshape(found, (len(cases.OPTIMIZERS), cases.STEPS, -1))


def clipped():
    """For each norm to clip at: the norm found, then all gradients after."""
    gradients = cases.gradients_to_clip()
    sums = [square_sum(g) for g in gradients]
    factors = [Scaling(clip_norm=norm).factor(sums) for norm in cases.CLIP_NORMS]
    norm = np.sqrt(sum(sums))
    return np.stack([np.concatenate([[norm], *(g * np.float32(factor) for g in gradients)]) for factor in factors])


def loss_scales():
    """The exponent of the loss scale after each step, and whether the step was taken, where each gradient is 1."""
    scaling = Scaling(INITIAL_SCALE, dynamic=True)
    exponents, taken = [], []
    for overflows in cases.overflows():
        factor = scaling.factor([np.inf if overflows else scaling.loss_scale**2])
        exponents.append(int(np.log2(scaling.loss_scale)))
        taken.append(factor is not None)
    return np.array(exponents), np.array(taken)
