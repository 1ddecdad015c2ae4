"""Networks in three precisions, optimizers, clipping and loss scales against what PyTorch answered.

The answers are recorded; `make oracles` asks PyTorch anew and names the file of live answers in `TORCH_ANSWERS`.
"""

import os
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tests.oracles import answers, cases, ours
from zerosim.autograd.operations.elementwise import ACTIVATIONS
from zerosim.autograd.operations.linear import linear, linear_backward
from zerosim.autograd.operations.losses import LOSSES
from zerosim.autograd.player import Player, Precise
from zerosim.optim.optimizers import OPTIMIZERS
from zerosim.optim.scaling import Scaling

PYTORCH = answers.read(Path(os.environ.get("TORCH_ANSWERS", answers.RECORDED)))
BITS = {"bfloat16 bits", "float16 bits"}


def different():
    """The names of the cases in which zerosim and PyTorch are further apart than rounding permits."""
    return set(answers.disagreements(ours.ask(), PYTORCH))


def networks(*, dtypes=cases.DTYPES, **fields):
    """The cases of networks with these fields; in 16 bits their numbers must be the same bits besides."""
    chosen = [n for n in cases.NETWORKS if all(getattr(n, field) == value for field, value in fields.items())]
    return {f"{dtype} {network.name}" for dtype in dtypes for network in chosen}


def test_zerosim_agrees_with_pytorch_but_for_rounding():
    assert answers.disagreements(ours.ask(), PYTORCH) == {}


def test_an_answer_that_is_no_number_is_a_disagreement():
    spoilt = ours.ask()
    for name in ("float16 answers", "float32 losses", "updates", "clipped"):
        spoilt[name] = spoilt[name].copy()
        spoilt[name].flat[-1] = np.nan
    lines = answers.disagreements(spoilt, PYTORCH)
    last, (rule, h) = cases.NETWORKS[-1].name, cases.OPTIMIZERS[-1]
    assert set(lines) == {f"float16 {last}", f"float32 {last}", f"{rule} {h}", f"clipped at {cases.CLIP_NORMS[-1]}"}
    assert all(": nan times" in line for line in lines.values())


# Planted in the networks: exactly the cases that they concern must disagree.


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_activations_that_are_not_applied_in_16_bits_are_caught(monkeypatch, activation):
    """As on a tape of a former day, which passed on what an activation had been given."""
    honest = Player._forward

    def not_applied(self, step, values, dtype):
        if dtype.itemsize == 2 and step.instruction.operation is ACTIVATIONS[activation]:
            return values[step.instruction.inputs["x"]], None
        return honest(self, step, values, dtype)

    monkeypatch.setattr(Player, "_forward", not_applied)
    concerned = networks(activation=activation, dtypes=("bfloat16", "float16"))
    assert different() == concerned | BITS


def passed_on(upstream, into, *, empty, **named):
    into["x"][...] = upstream


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_dropped_derivative_of_an_activation_is_caught(monkeypatch, activation):
    monkeypatch.setitem(ACTIVATIONS, activation, replace(ACTIVATIONS[activation], backward=passed_on))
    assert different() == networks(activation=activation) | BITS


def no_bias(upstream, into, **given):
    linear_backward(upstream, into, **given)
    into["bias"][:] = 0.0


def last_sample_missing(upstream, into, *, empty, x, **given):
    linear_backward(upstream, {name: each for name, each in into.items() if name == "x"}, empty=empty, **given)
    of_parameters = {name: each for name, each in into.items() if name != "x"}
    linear_backward(upstream[:-1], of_parameters, empty=empty, x=x[:-1])


@pytest.mark.parametrize("backward", [no_bias, last_sample_missing])
def test_a_gradient_without_its_bias_or_a_sample_is_caught(monkeypatch, backward):
    monkeypatch.setattr("zerosim.models.mlp.linear", replace(linear, backward=backward))
    assert different() == networks() | BITS


@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_or_its_gradient_a_thousandth_too_large_is_caught_in_float32(monkeypatch, loss):
    right = LOSSES[loss]
    for factors in ((1.001, 1.0), (1.0, 1.001)):
        monkeypatch.setitem(LOSSES, loss, lambda *arguments, factors=factors, **empty: tuple(
            array * np.float32(factor) for array, factor in zip(right(*arguments, **empty), factors, strict=True)))
        assert networks(loss=loss, dtypes=["float32"]) <= different() <= networks(loss=loss) | BITS


def rounding(how):
    """A plant: values and upstreams that are rounded are rounded by `how(array, dtype)`."""

    class Rounding(Precise):
        def rounded(self, array, dtype):
            return array if array.dtype == dtype else how(array, dtype)

    return Rounding


def as_bfloat16(array, dtype):
    return array.astype(ml_dtypes.bfloat16 if dtype == np.float16 else dtype).astype(dtype)


def towards_zero(array, dtype):
    near = array.astype(dtype)
    return np.where(np.abs(near) > np.abs(array), np.nextafter(near, np.zeros_like(near)), near)


def test_float16_rounded_as_bfloat16_is_caught(monkeypatch):
    monkeypatch.setattr("zerosim.autograd.tape.Precise", rounding(as_bfloat16))
    assert different() == networks(dtypes=["float16"]) | {"float16 bits"}


def test_rounding_towards_zero_is_caught(monkeypatch):
    monkeypatch.setattr("zerosim.autograd.tape.Precise", rounding(towards_zero))
    assert different() >= BITS


# Planted in the optimizers, clipping and the loss scale.


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
    return {f"{n} {h}" for n, h in cases.OPTIMIZERS if n == name and ("weight_decay" in h or not decaying)}


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


def test_another_epsilon_in_clipping_is_caught(monkeypatch):
    monkeypatch.setattr("zerosim.optim.scaling.EPSILON", 2e-6)
    assert different() == {f"clipped at {norm}" for norm in cases.CLIP_NORMS[:3]}


@pytest.mark.parametrize("steps", [1999, 2001])
def test_another_number_of_steps_before_the_loss_scale_grows_is_caught(monkeypatch, steps):
    monkeypatch.setattr("zerosim.optim.scaling.STEPS_TO_GROW", steps)
    assert different() == {"loss scales"}


def test_an_overflow_after_which_good_steps_are_still_counted_is_caught(monkeypatch):
    right = Scaling.factor

    def forgets_to_begin_anew(self, square_sums):
        counted = self.good_steps
        factor = right(self, square_sums)
        if factor is None:
            self.good_steps = counted
        return factor

    monkeypatch.setattr(Scaling, "factor", forgets_to_begin_anew)
    assert different() == {"loss scales"}
