"""The loss scale after any run of steps, some of which overflow; rows and reference share the code of it."""

import math
from random import Random

import pytest

from zerosim.stages import scaling


@pytest.mark.parametrize("seed", range(20))
def test_the_loss_scale_follows_from_the_overflows_so_far(seed, monkeypatch):
    """It halves at each, down to the lowest, and doubles after so many steps in a row without one."""
    monkeypatch.setattr(scaling, "STEPS_TO_GROW", 3)
    chance = Random(seed)
    overflows = [chance.random() < chance.choice((0.1, 0.4, 0.9)) for _ in range(60)]
    scale = chance.choice((2.0**-23, 1.0, scaling.INITIAL_SCALE))
    ours, since = scaling.Scaling(loss_scale=scale, dynamic=True), 0
    for overflow in overflows:
        assert ours.factor([math.inf if overflow else 1.0]) == (None if overflow else 1.0 / scale)
        since = 0 if overflow else since + 1
        scale = max(scale / 2, scaling.LOWEST_SCALE) if overflow else 2 * scale if since % 3 == 0 else scale
        assert ours.loss_scale == scale
