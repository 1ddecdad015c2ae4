"""Optimizers, clipping and the loss scale against what PyTorch answered.

The answers are recorded; `make oracles` asks PyTorch again and names the folder of live answers in `TORCH_ANSWERS`.
"""

from dataclasses import replace

import numpy as np
import pytest

from tests.oracles import functions, updates
from zerosim.stages.optimizers import OPTIMIZERS, Hyperparameters
from zerosim.stages.scaling import INITIAL_SCALE, Scaling, square_sum

with np.load(functions.ANSWERS / updates.FILE) as stored:
    PYTORCH = dict(stored)


def updated():
    """The weights after each step, one optimizer after another."""
    found = []
    for name, h in updates.OPTIMIZERS:
        weights, gradients = updates.trajectory()
        state = {slot: np.zeros_like(weights) for slot in OPTIMIZERS[name].slots}
        for step, gradient in enumerate(gradients, start=1):
            OPTIMIZERS[name].update(weights, gradient, state, step, Hyperparameters(**h))
            found.append(weights.copy())
    return np.reshape(found, (len(updates.OPTIMIZERS), updates.STEPS, -1))


def clipped():
    """For each norm to clip at: the norm found, then all gradients after."""
    gradients = updates.gradients_to_clip()
    sums = [square_sum(g) for g in gradients]
    factors = [Scaling(clip_norm=norm).factor(sums) for norm in updates.CLIP_NORMS]
    norm = np.sqrt(sum(sums))
    return np.stack([np.concatenate([[norm], *(g * np.float32(factor) for g in gradients)]) for factor in factors])


def loss_scales():
    """The exponent of the loss scale after each step, and whether the step was taken, where each gradient is 1."""
    scaling = Scaling(INITIAL_SCALE, dynamic=True)
    exponents, taken = [], []
    for overflows in updates.overflows():
        factor = scaling.factor([np.inf if overflows else scaling.loss_scale**2])
        exponents.append(int(np.log2(scaling.loss_scale)))
        taken.append(factor is not None)
    return np.array(exponents), np.array(taken)


def ask():
    exponents, taken = loss_scales()
    return {"updates": updated(), "clipped": clipped(), "loss scales": exponents, "taken": taken}


def different():
    """The names of the cases in which zerosim and PyTorch are further apart than rounding permits."""
    return updates.disagreements(ask(), PYTORCH)


def test_zerosim_agrees_with_pytorch_but_for_rounding():
    assert different() == set()


def test_an_answer_that_is_no_number_is_a_disagreement():
    spoilt = ask()
    for name in ("updates", "clipped"):
        spoilt[name].flat[-1] = np.nan
    rule, h = updates.OPTIMIZERS[-1]
    assert updates.disagreements(spoilt, PYTORCH) == {f"{rule} {h}", f"clipped at {updates.CLIP_NORMS[-1]}"}


# Planted: exactly what they concern must disagree.


def epsilon_inside_the_root(g, m, v, *, t, h, a, b):
    (beta1, beta2) = h.betas
    m[:] = beta1 * m + (1 - beta1) * g
    v[:] = beta2 * v + (1 - beta2) * g * g
    a[:] = h.learning_rate * m / (1 - beta1**t) / np.sqrt(v / (1 - beta2**t) + h.epsilon)


def without_bias_correction(g, m, v, *, t, h, a, b):
    OPTIMIZERS["adamw"].formula(g, m, v, t=1000, h=h, a=a, b=b)


def damped(g, m, *, t, h, a, b):
    m[:] = h.momentum * m + (1 - h.momentum) * g
    a[:] = h.learning_rate * m


def rules(name, *, decaying=False):
    return {f"{n} {h}" for n, h in updates.OPTIMIZERS if n == name and ("weight_decay" in h or not decaying)}


@pytest.mark.parametrize(("name", "wrong", "decaying"), [
    ("momentum", {"formula": damped}, False),
    ("adam", {"formula": epsilon_inside_the_root}, False),
    ("adam", {"formula": without_bias_correction}, False),
    ("adam", {"decoupled": True}, True),
    ("adamw", {"decoupled": False}, True),
])
def test_a_wrong_optimizer_is_caught(monkeypatch, name, wrong, decaying):
    monkeypatch.setitem(OPTIMIZERS, name, replace(OPTIMIZERS[name], **wrong))
    assert different() == rules(name, decaying=decaying)


@pytest.mark.parametrize("steps", [1999, 2001])
def test_another_number_of_steps_before_the_loss_scale_grows_is_caught(monkeypatch, steps):
    monkeypatch.setattr("zerosim.stages.scaling.STEPS_TO_GROW", steps)
    assert different() == {"loss scales"}
