"""Bits of a tape against plain folds, and what it keeps and frees."""

import sys
import weakref
from functools import reduce

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerosim.autograd.operations.elementwise import ACTIVATIONS
from zerosim.autograd.operations.losses import LOSSES
from zerosim.autograd.tape import Tape
from zerosim.errors import CollectiveError
from zerosim.models.mlp import mlp

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
