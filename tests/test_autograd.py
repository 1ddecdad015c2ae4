"""Gradients against finite differences, bits against plain folds, and what a tape lets go of."""

import math
import sys
import weakref
from dataclasses import replace
from functools import reduce
from itertools import pairwise

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from zerosim.autograd.operations.elementwise import ACTIVATIONS, gelu_backward, gelu_forward
from zerosim.autograd.operations.linear import linear, linear_backward
from zerosim.autograd.operations.losses import LOSSES, cross_entropy, mean_squared_error
from zerosim.autograd.tape import Tape
from zerosim.errors import CollectiveError
from zerosim.models.mlp import mlp

FUNCTIONS = {
    "relu": lambda z: np.where(z > 0, z, 0),
    "tanh": np.tanh,
    "gelu": lambda z: z / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3))),
}

networks = st.fixed_dictionaries({
    "widths": st.lists(st.integers(1, 4), min_size=2, max_size=4),
    "activation": st.sampled_from(list(ACTIVATIONS)),
    "loss": st.sampled_from(list(LOSSES)),
    "batches": st.lists(st.integers(1, 3), min_size=1, max_size=3),
    "elsewhere": st.integers(0, 3),
    "seed": st.integers(0, 2**32 - 1),
})


class Case:
    """A model with weights and data for one rank; `elsewhere` samples are on other ranks."""

    def __init__(self, widths, activation, loss, *, batches, elsewhere=0, seed=0, dtype="f8"):
        self.widths, self.activation = widths, activation
        self.model = mlp(widths[0], widths[1:-1], widths[-1], activation, loss)
        self.samples = sum(batches) + elsewhere
        rng = np.random.default_rng(seed)
        self.weights = [rng.uniform(-1, 1, unit.count).astype(dtype) for unit in self.model.units]
        self.inputs = [rng.standard_normal((rows, widths[0])).astype(dtype) for rows in batches]
        self.targets = [rng.integers(widths[-1], size=rows) if loss == "cross_entropy"
                        else rng.standard_normal((rows, widths[-1])).astype(dtype)
                        for rows in batches]

    def run(self, tape=None, units=None, weights=None):
        """The loss and each unit's gradient, as a tape finds them."""
        tape, units = tape or Tape(), units or self.model.units
        weights = weights or self.weights
        activations = self.inputs
        for unit, flat in zip(units, weights, strict=True):
            activations = tape.forward(unit, flat, activations)
        loss, upstreams = tape.loss(self.model.loss, activations, self.targets, self.samples)
        gradients = []
        for unit, flat in zip(reversed(units), reversed(weights), strict=True):
            upstreams, gradient = tape.backward(unit, flat, upstreams)
            gradients.insert(0, gradient)
        assert upstreams == []
        return loss, gradients

    def plain_loss(self, flat):
        """The loss from its formula, and how near to a kink any activation came."""
        x, nearest = np.concatenate(self.inputs), math.inf
        for layer, (inputs, outputs) in enumerate(pairwise(self.widths)):
            weight, bias, flat = np.split(flat, [inputs * outputs, (inputs + 1) * outputs])
            x = x @ weight.reshape(outputs, inputs).T + bias
            if layer < len(self.widths) - 2:
                nearest = min(nearest, np.abs(x).min())
                x = FUNCTIONS[self.activation](x)
        targets = np.concatenate(self.targets)
        if self.model.loss == "cross_entropy":
            chosen = x[np.arange(len(x)), targets]
            return np.sum(np.log(np.exp(x).sum(axis=1)) - chosen) / self.samples, nearest
        return np.sum((x - targets) ** 2) / (self.samples * x.shape[1]), nearest


def check_gradients(case, step=1e-6):
    flat = np.concatenate(case.weights)
    expected, _ = case.plain_loss(flat)
    loss, gradients = case.run()
    assert loss.shape == (1,)
    np.testing.assert_allclose(loss[0], expected, rtol=1e-12, atol=1e-15)
    differences = [(case.plain_loss(flat + step * e)[0] - case.plain_loss(flat - step * e)[0])
                   / (2 * step) for e in np.eye(len(flat))]
    np.testing.assert_allclose(np.concatenate(gradients), differences,
                               rtol=1e-6, atol=1e-7 * (1 + expected))


@given(networks)
def test_gradients_are_the_central_differences_of_the_formula(network):
    case = Case(**network)
    _, nearest = case.plain_loss(np.concatenate(case.weights))
    assume(network["activation"] != "relu" or nearest > 1e-3)
    check_gradients(case)


def flipped(upstream, into, *, empty, y):
    np.multiply(upstream, y <= 0, out=into["x"])


def unsquared(upstream, into, *, empty, y):
    np.multiply(upstream, 1 - y, out=into["x"])


def without_inner_derivative(upstream, into, *, empty, x):
    np.multiply(upstream, 0.5 * (1 + np.tanh(x)), out=into["x"])


def last_bias_only(upstream, into, **given):
    linear_backward(upstream, into, **given)
    into["bias"][:] = upstream[-1]


def unscaled(outputs, targets, samples, *, empty):
    loss, upstream = mean_squared_error(outputs, targets, samples, empty=empty)
    return loss, upstream * samples


@pytest.mark.parametrize(("activation", "table", "name", "wrong"), [
    ("relu", ACTIVATIONS, "relu", replace(ACTIVATIONS["relu"], backward=flipped)),
    ("tanh", ACTIVATIONS, "tanh", replace(ACTIVATIONS["tanh"], backward=unsquared)),
    ("gelu", ACTIVATIONS, "gelu", replace(ACTIVATIONS["gelu"], backward=without_inner_derivative)),
    ("tanh", LOSSES, "mean_squared_error", unscaled),
    ("tanh", vars(sys.modules["zerosim.models.mlp"]), "linear", replace(linear, backward=last_bias_only)),
])
def test_a_planted_wrong_derivative_is_caught(monkeypatch, activation, table, name, wrong):
    network = {"widths": [3, 4, 2], "activation": activation, "loss": "mean_squared_error",
               "batches": [3, 2], "elsewhere": 1, "seed": 1}
    check_gradients(Case(**network))
    monkeypatch.setitem(table, name, wrong)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        check_gradients(Case(**network))


@pytest.mark.parametrize(("activation", "loss", "value", "first", "second"), [
    ("relu", "cross_entropy", 0.39998621714124266, -2.107730231786, -1.362463936226),
    ("relu", "mean_squared_error", 0.6940282185872396, 6.653279622396, 10.531331380208),
    ("tanh", "cross_entropy", 0.4469726056326219, -0.207073839454, -1.021438330332),
    ("tanh", "mean_squared_error", 0.6841373972869046, 1.230043087714, 7.346753275435),
    ("gelu", "cross_entropy", 0.4173480274054713, -2.222515247232, -1.340313248153),
    ("gelu", "mean_squared_error", 0.6436697711645976, 7.734653626491, 9.168209633461),
])
def test_loss_and_gradients_are_those_of_pytorch_2_13(activation, loss, value, first, second):
    case = Case([2, 3, 2], activation, loss, batches=[3])
    case.weights = [(np.arange(n) * 7 % 11 - 5) / 8 for n in (9, 8)]
    case.inputs = [np.array([[1.0, -0.5], [0.25, 2.0], [-1.5, 0.75]])]
    case.targets = [np.array([0, 1, 1]) if loss == "cross_entropy"
                    else np.array([[1.0, 0.0], [0.0, -1.0], [0.5, 0.5]])]
    found, gradients = case.run()
    assert found[0] == pytest.approx(value, rel=1e-14)
    weighted = [gradient @ np.arange(1, len(gradient) + 1) for gradient in gradients]
    assert weighted == pytest.approx([first, second], abs=1e-11)


@given(networks, st.sampled_from(["f4", "f8"]), st.data())
def test_grouping_padding_and_accumulation_leave_the_bits_alone(network, dtype, data):
    case = Case(**network, dtype=dtype)
    loss, gradients = case.run()
    layers = list(range(len(case.model.units)))
    cut = data.draw(st.integers(1, len(layers)), label="cut")
    groups = [group for group in (layers[:cut], layers[cut:]) if group]
    first, *hidden, last = case.widths
    units = mlp(first, hidden, last, case.activation, case.model.loss, groups=groups).units
    weights = [np.concatenate([*group, np.ones(2, dtype)])
               for group in (case.weights[:cut], case.weights[cut:]) if group]
    kept_apart = Tape(accumulate=lambda total, contribution: [*(total or []), contribution])
    losses, contributions = case.run(kept_apart, units, weights)
    folded = [reduce(np.add, apart) for apart in contributions]
    assert loss.dtype == gradients[0].dtype == folded[0].dtype == dtype
    assert reduce(np.add, losses).tobytes() == loss.tobytes()
    assert all(not gradient[unit.count:].any() and len(gradient) == unit.count + 2
               for unit, gradient in zip(units, folded, strict=True))
    unpadded = [gradient[:-2] for gradient in folded]
    assert np.concatenate(unpadded).tobytes() == np.concatenate(gradients).tobytes()


class Living:
    """An allocator that fills with NaN and knows which of its arrays are alive."""

    def __init__(self):
        self.arrays = []
        self.most = 0

    def __call__(self, shape, dtype, *, kind, owner):
        array = np.full(shape, np.nan, dtype)
        self.arrays.append((kind, weakref.ref(array)))
        self.most = max(self.most, len(self.alive("gradients")))
        return array

    def alive(self, kind):
        return [array().shape for k, array in self.arrays if k == kind and array() is not None]


@pytest.mark.parametrize("batches", [[2], [2, 2], [2, 2, 2, 2]])
@pytest.mark.parametrize(("activation", "copies"), [("relu", 1), ("tanh", 1), ("gelu", 2)])
def test_a_tape_holds_no_weights_and_activations_die_as_backward_passes(
    activation, copies, batches
):
    living = Living()
    tape, count = Tape(allocate=living), len(batches)
    case = Case([3, 4, 5, 6], activation, "cross_entropy", batches=batches)
    first, second, third = case.model.units
    activations = case.inputs
    for unit in case.model.units:
        weights = np.full(unit.count, 0.1)
        dropped = weakref.ref(weights)
        activations = tape.forward(unit, weights, activations)
        del weights
        assert dropped() is None
    _, upstreams = tape.loss("cross_entropy", activations, case.targets, case.samples)
    del activations
    hidden = [(2, 4)] * copies * count, [(2, 5)] * copies * count
    assert sorted(living.alive("activations")) == [*hidden[0], *hidden[1], *[(2, 6)] * count]
    for unit, kept in [(third, [*hidden[0], *hidden[1][::copies], *[(2, 5)] * count]),
                       (second, [*hidden[0][::copies], *[(2, 4)] * count]), (first, [])]:
        weights = np.full(unit.count, 0.1)
        references = sys.getrefcount(weights)
        upstreams, gradient = tape.backward(unit, weights, upstreams)
        assert sys.getrefcount(weights) == references
        assert living.alive("gradients") == [(unit.count,)]
        assert np.isfinite(gradient).all()
        del gradient
        assert sorted(living.alive("activations")) == sorted(kept)
    assert living.most == min(count, 2)
    with pytest.raises(CollectiveError, match=r"backward of layers.0: forward has not run for it"):
        tape.backward(first, weights, upstreams)


def test_cross_entropy_is_stable_far_from_zero():
    outputs = np.array([[1e4, 0.0], [-1e4, 0.0]], np.float32)
    loss, upstream = cross_entropy(outputs, np.array([0, 0]), 2, empty=np.empty)
    assert loss.tolist() == [5000.0]
    assert upstream.tolist() == [[0.0, 0.0], [-0.5, 0.5]]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gelu_is_the_ramp_far_from_zero(dtype):
    x = np.array([[-1e10, 0.0, 1e10]], dtype)
    y, into = np.empty_like(x), {"x": np.empty_like(x)}
    gelu_forward(x, out=y, empty=np.empty)
    gelu_backward(np.ones_like(x), into, empty=np.empty, x=x.copy())
    assert y.tolist() == [[0.0, 0.0, 1e10]]
    assert into["x"].tolist() == [[0.0, 0.5, 1.0]]


@settings(max_examples=25)
@given(networks)
def test_the_same_inputs_give_the_same_bits(network):
    (loss, gradients), (again, repeated) = (Case(**network, dtype="f4").run() for _ in range(2))
    assert loss.tobytes() == again.tobytes()
    assert [g.tobytes() for g in gradients] == [g.tobytes() for g in repeated]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
@pytest.mark.parametrize("activation", ["relu", "tanh", "gelu"])
def test_activations_apply_in_every_precision(activation, dtype):
    """What comes out of a hidden layer, and what backward makes of it, is the rounded answer of float32."""
    unit = mlp(1, [2], 1, activation, "mean_squared_error", groups=[[0], [1]]).units[0]
    weights = np.array([-1.0, 1.0, 0.0, 0.25], dtype)

    def both_ways(precision):
        tape = Tape()
        (y,) = tape.forward(unit, weights.astype(precision), [np.ones((1, 1), precision)])
        values = y.copy()
        _, gradient = tape.backward(unit, weights.astype(precision), [np.ones((1, 2), precision)])
        return values, gradient

    y, gradient = both_ways(dtype)
    due, slope = both_ways(np.float32)
    assert y.tobytes() == due.astype(dtype).tobytes()
    assert not np.array_equal(y, [[-1.0, 1.25]]), "the linear map alone"
    np.testing.assert_allclose(gradient.astype(np.float32), slope, atol=2**-6)


@pytest.mark.parametrize(("activation", "kept"), [("relu", {2}), ("tanh", {2}), ("gelu", {1, 2})])
def test_a_tape_keeps_what_backward_needs_and_nothing_else(activation, kept):
    """Of a layer's values: 0 its input, 1 what the linear map makes of it, 2 its output."""
    model = mlp(3, [4], 2, activation, "cross_entropy")
    plan = model.units[0].segments[0].plan((5, 3), of_parameters=True, of_input=False)
    values = [plan.graph.input.slot, *(each.output for each in plan.graph.instructions)]
    needed = {0} | ({2} if activation != "gelu" else {1})
    assert {values.index(slot) for slot in plan.kept} == needed
    living = Living()
    tape = Tape(allocate=living)
    outputs = tape.forward(model.units[0], np.ones(model.units[0].count), [np.ones((5, 3))])
    assert living.alive("activations") == [(5, 4)] * len(kept)
    del outputs
    assert living.alive("activations") == [(5, 4)]
