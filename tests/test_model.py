"""Where parameters lie, what they are called, and how they begin."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerosim.errors import ZerosimError
from zerosim.models.mlp import mlp

widths = st.lists(st.integers(1, 6), min_size=2, max_size=5)


def of(widths, activation="relu", groups=None):
    return mlp(widths[0], widths[1:-1], widths[-1], activation, "cross_entropy", groups=groups)


def grouped(widths):
    """All layers in one unit."""
    (unit,) = of(widths, groups=[list(range(len(widths) - 1))]).units
    return unit


def operations(unit):
    return [each.operation.name for segment in unit.segments for each in segment.graph((1, 3)).instructions]


def test_a_model_is_named_and_shaped_like_pytorchs_linear_layers():
    model = of([3, 5, 2], "tanh")
    assert [(place.name, place.shape) for place in model.places] == [
        ("layers.0.weight", (5, 3)), ("layers.0.bias", (5,)),
        ("layers.1.weight", (2, 5)), ("layers.1.bias", (2,)),
    ]
    assert (model.task.inputs, model.task.outputs, model.count, model.words) == (3, 2, 32, "3-5-2 MLP")
    assert operations(grouped([3, 5, 2])) == ["linear", "relu", "linear"]
    assert operations(model.units[0]) == ["linear", "tanh"]
    assert [unit.name for unit in (*model.units, grouped([3, 5, 2]))] == ["layers.0", "layers.1", "layers.0-1"]


@given(widths, st.integers(0, 5))
def test_views_tile_the_flat_buffer_in_model_order_and_leave_the_padding(widths, padding):
    unit = grouped(widths)
    flat = np.arange(unit.count + padding)
    views = unit.views(flat)
    assert [view.shape for view in views.values()] == [p.shape for p in unit.places]
    assert np.concatenate([v.ravel() for v in views.values()]).tolist() == list(range(unit.count))
    for view in views.values():
        view[...] = -1
    assert flat.tolist() == [-1] * unit.count + list(range(unit.count, unit.count + padding))


@given(widths, st.integers(0, 2**31))
def test_initial_weights_do_not_depend_on_grouping(widths, seed):
    model = of(widths)
    apart = [unit.initial(seed) for unit in model.units]
    assert grouped(widths).initial(seed).tobytes() == np.concatenate(apart).tobytes()
    for unit, inputs, flat in zip(model.units, widths[:-1], apart, strict=True):
        assert (flat.dtype, len(flat)) == (np.float32, unit.count)
        assert np.abs(flat).max() <= np.float32(1 / np.sqrt(inputs))


def test_initial_weights_are_uniform_and_every_layer_and_seed_draws_its_own():
    first, second = (unit.initial(0) for unit in of([100, 100, 100]).units)
    bound = 0.1
    assert first.mean() == pytest.approx(0, abs=bound / 50)
    assert first.std() == pytest.approx(bound / np.sqrt(3), rel=0.02)
    others = [second, of([100, 100, 100]).units[0].initial(1)]
    assert all(abs(np.corrcoef(first, other)[0, 1]) < 0.05 for other in others)


def test_units_are_themselves_and_nothing_else():
    unit, twin = (of([2, 2]).units[0] for _ in range(2))
    assert unit != twin
    assert len({unit, twin, unit}) == 2


@pytest.mark.parametrize(("arguments", "message"), [
    ((2, [], 1, "rely", "cross_entropy"), "activation 'rely' is not known; use one of relu, tanh"),
    ((2, [], 1, "relu", "hinge"), "loss 'hinge' is not known; use one of cross_entropy, mean"),
    ((2, [3, 0], 1, "relu", "cross_entropy"), r"widths are \[2, 3, 0, 1\]; give every layer"),
])
def test_a_model_that_cannot_be_is_refused_in_one_line(arguments, message):
    with pytest.raises(ZerosimError, match=message) as raised:
        mlp(*arguments)
    assert "\n" not in str(raised.value)
