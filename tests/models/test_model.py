"""Where parameters lie, what they are called, and how they begin."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerosim.core.errors import ZerosimError
from zerosim.models.mlp import mlp

widths = st.lists(st.integers(1, 6), min_size=2, max_size=5)


def of(widths, activation="relu", groups=None):
    return mlp(widths[0], widths[1:-1], widths[-1], activation, "cross_entropy", groups=groups)


def grouped(widths):
    """All layers in one unit."""
    (unit,) = of(widths, groups=[list(range(len(widths) - 1))]).units
    return unit


@given(widths, st.integers(0, 2**31))
def test_initial_weights_do_not_depend_on_grouping(widths, seed):
    model = of(widths)
    apart = [unit.initial(seed) for unit in model.units]
    assert grouped(widths).initial(seed).tobytes() == np.concatenate(apart).tobytes()
    for unit, inputs, flat in zip(model.units, widths[:-1], apart, strict=True):
        assert (flat.dtype, len(flat)) == (np.float32, unit.count)
        assert np.abs(flat).max() <= np.float32(1 / np.sqrt(inputs))


def test_units_are_themselves_and_nothing_else():
    unit, twin = (of([2, 2]).units[0] for _ in range(2))
    assert unit != twin
    assert len({unit, twin, unit}) == 2


@pytest.mark.parametrize(("arguments", "keys", "message"), [
    *(((2, [2, 2], 2, "relu", "cross_entropy"), {"groups": groups}, "must name the layers 0 to 2, each once$")
      for groups in ([[0], [2]], [[0, 1]], [[0, 1], [1, 2]], [[0], [], [1, 2]], [[0], [1, 1, 2]])),
    ((2, [2, 2], 2, "relu", "cross_entropy"), {"groups": [[0, 1], [2]], "frozen": [1]},
     r"the unit of layers \[0, 1\] is partly frozen"),
])
def test_a_model_that_cannot_be_is_refused_in_one_line(arguments, keys, message):
    with pytest.raises(ZerosimError, match=message) as raised:
        mlp(*arguments, **keys)
    assert "\n" not in str(raised.value)
