"""An operation played forward and backward."""

import numpy as np

from tests.autograd.formulas import nan, uniform_draws
from zerosim.autograd.graph import GraphPlan
from zerosim.autograd.player import Contribution, Player, Precise


def on_nan(shape, dtype, *, kind, owner):
    return nan(shape, dtype)


def play(graph, x, parameters, upstream, *, of_input=True, plan=None, split=False):
    """The output, and the gradients of the parameters and of the input, by name."""
    plan = plan or GraphPlan(graph, True, of_input)
    player = Player(plan, parameters, Precise(on_nan, "unit"), lambda _: uniform_draws)
    y, kept = player.forward(x)
    views = {name: nan(array.shape, array.dtype) for name, array in parameters.items()}
    contribution = Contribution(np.empty(0), views)
    if split:
        first, second = plan.split
        of_x = player.backward(kept, upstream, None, first)
        player.backward(kept, None, contribution, second)
        assert [kept.values, kept.saved, kept.gradients] == [{}, {}, {}]
    else:
        of_x = player.backward(kept, upstream, contribution)
    contribution.finished()
    return y, views | ({"input": of_x[0]} if of_input else {})
