"""What a player keeps and lets go of, and how plans count: by hand, on graphs of a few lines."""

import weakref

import numpy as np
import pytest

from tests.autograd.formulas import normals
from tests.autograd.played import play
from zerosim.autograd import player as module
from zerosim.autograd.graph import Graph, GraphPlan
from zerosim.autograd.operations.attention import causal_attention
from zerosim.autograd.operations.elementwise import gelu, multiply, relu, scale
from zerosim.autograd.operations.embedding import embedding
from zerosim.autograd.operations.linear import linear
from zerosim.autograd.operations.normalization import rms_norm
from zerosim.autograd.operations.shapes import transpose
from zerosim.autograd.player import Player, Precise, perform
from zerosim.core.allocation import allocate

SHAPE = (2, 4, 4)


def test_a_sum_is_written_over_one_of_its_terms_or_beside_both(monkeypatch):
    """Never over an array that overlaps a term in other places: that costs a copy which no ledger sees."""
    sums = []

    class Numbers:
        def __getattr__(self, name):
            return getattr(np, name)

        def add(self, one, other, out):
            sums.append([each is out or not np.shares_memory(each, out) for each in (one, other)])
            return np.add(one, other, out=out)

    monkeypatch.setattr(module, "np", Numbers())
    graph = Graph((4, 4))
    graph.output = graph.input + transpose(graph.input, axes=(1, 0))
    _, gradients = play(graph, normals(0, 4, 4), {}, upstream := normals(1, 4, 4))
    assert gradients["input"].tobytes() == (upstream + upstream.T).tobytes()
    assert sums == [[True, True]]


def test_arrays_that_are_written_or_handed_on_are_in_c_order():
    """So that a result has the same bits wherever it is written, and can be sent and stored as it is."""
    def turned(x):
        return transpose(x, axes=(1, 0))

    def watching(step, function, *arrays, **named):
        found = perform(step, function, *arrays, **named)
        orders.append((arrays[1]["x"] if found is None else found).flags.c_contiguous)
        return found

    graph, orders = Graph((4, 5)), []
    graph.output = turned(relu(turned(scale(turned(graph.input), factor=2.0))))
    mine = player(graph, {}, perform=watching)
    y, kept = mine.forward(normals(0, 4, 5))
    (gradient,) = mine.backward(kept, np.ones(y.shape), None)
    assert (orders, y.flags.c_contiguous, gradient.flags.c_contiguous) == ([True] * 4, True, True)


def player(graph, parameters, *, allocate=allocate, of_parameters=True, of_input=True, perform=perform):
    plan = GraphPlan(graph, of_parameters, of_input)
    return Player(plan, parameters, Precise(allocate, "unit"), lambda _: None, perform)


def attention_between_others():
    """Both ends save or keep something: a norm, attention with what it saves, a product."""
    graph = Graph(SHAPE)
    weight = graph.parameter("weight", (4,))
    h = rms_norm(graph.input, weight)
    h = causal_attention(h, h, h, heads=2, key_value_heads=2)
    graph.output = multiply(h, gelu(h))
    return graph


def test_backward_lets_go_of_what_its_operations_have_read_one_after_the_other():
    graph, left = attention_between_others(), []

    def watching(step, function, *arrays, **named):
        if function is step.instruction.operation.backward:
            left.append((step.instruction.operation.name, set(kept.values), set(kept.saved)))
        return perform(step, function, *arrays, **named)

    mine = player(graph, {"weight": np.ones(4)}, perform=watching)
    _, kept = mine.forward(normals(0, *SHAPE))
    norm, attended, curved, _ = (each.output for each in graph.instructions)
    assert (set(kept.values), set(kept.saved)) == ({0, norm, attended, curved}, {attended})
    mine.backward(kept, np.ones(SHAPE), module.Contribution(np.empty(4), {"weight": np.empty(4)}))
    assert left == [
        ("multiply", {0, norm, attended, curved}, {attended}),
        ("gelu", {0, norm, attended}, {attended}),
        ("causal_attention", {0, norm}, {attended}),
        ("rms_norm", {0}, set()),
    ]
    assert (kept.values, kept.saved) == ({}, {})
    _, kept = player(graph, {"weight": np.ones(4)}, of_parameters=False, of_input=False).forward(normals(0, *SHAPE))
    assert (kept.values, kept.saved) == ({}, {})     # nobody differentiates


def chain(*, of_parameters, of_input):
    """Four products after another, and of how many arrays are alive as each goes forward, and backward."""
    graph, living, alive = Graph((5, 4)), [], []
    for name in "abcd":
        graph.output = linear(graph.output, graph.parameter(name, (4, 4)))

    def allocate(shape, dtype, *, kind, owner):
        array = np.empty(shape, dtype)
        living.append(weakref.ref(array))
        return array

    def watching(step, function, *arrays, **named):
        alive.append(sum(array() is not None for array in living))
        return perform(step, function, *arrays, **named)

    weights = {name: np.eye(4) for name in "abcd"}
    mine = player(
        graph, weights, allocate=allocate, of_parameters=of_parameters, of_input=of_input, perform=watching)
    kept = mine.forward(np.ones((5, 4)))[1]
    upstreams = [np.ones((5, 4))]
    living.append(weakref.ref(upstreams[0]))
    views = {name: np.empty((4, 4)) for name in "abcd"}
    mine.backward(kept, upstreams.pop(), module.Contribution(np.empty(0), views))
    return alive


def test_a_value_that_nobody_reads_any_more_is_let_go_of():
    """Before it allocates, forward has the input of an operation; backward beside what is kept ∂L/∂y."""
    assert chain(of_parameters=False, of_input=False) == [0, 1, 1, 1]
    assert chain(of_parameters=False, of_input=True) == [0, 1, 1, 1, 1, 1, 1, 1]
    assert chain(of_parameters=True, of_input=True) == [0, 1, 2, 3, 4, 3, 2, 1]


def test_tokens_become_numbers_in_the_precision_of_the_weights():
    graph = Graph((2, 3))
    graph.output = embedding(graph.input, graph.parameter("table", (5, 4)))
    y, _ = player(graph, {"table": np.ones((5, 4), np.float16)}).forward(np.zeros((2, 3), np.int64))
    assert (y.dtype, y.shape) == (np.float16, (2, 3, 4))


def test_what_an_operation_saves_is_for_backward_even_if_its_output_is_not():
    graph = Graph(SHAPE)
    graph.output = causal_attention(graph.input, graph.input, graph.input, heads=1, key_value_heads=1)
    assert [step.for_backward for step in GraphPlan(graph, True, True).steps] == [True]
    assert [step.for_backward for step in GraphPlan(graph, True, False).steps] == [False]


@pytest.mark.parametrize(("of_parameters", "of_input", "times"), [
    (True, True, 2), (True, False, 1), (False, True, 1), (False, False, 0)])
def test_floating_point_operations_by_hand(of_parameters, of_input, times):
    """A product of 5 × 3 by 3 × 4 has 60 multiplications and as many additions; each gradient is one such product."""
    graph = Graph((5, 3))
    graph.output = relu(linear(graph.input, graph.parameter("weight", (4, 3)), graph.parameter("bias", (4,))))
    plan = GraphPlan(graph, of_parameters, of_input)
    assert [(step.forward_operations, step.backward_operations) for step in plan.steps] == [(120, 120 * times), (0, 0)]


def test_a_view_of_a_parameter_does_not_keep_its_memory_until_backward():
    graph = Graph((4, 3))
    graph.output = linear(relu(graph.input), transpose(graph.parameter("weight", (3, 5)), axes=(1, 0)))
    weights = np.ones(15, np.float32)
    freed = weakref.ref(weights)
    parameters = {"weight": weights.reshape(3, 5)}
    plan = GraphPlan(graph, of_parameters=True, of_input=True)
    _, kept = Player(plan, parameters, Precise(allocate, "unit"), lambda _: None).forward(np.ones((4, 3), np.float32))
    del weights, parameters
    assert freed() is None
    assert len(kept.values) == 1
