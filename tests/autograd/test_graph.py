"""Graphs of operations in any order: the bits of a player that copies everything.

Gradients of several terms share memory in many ways: a value added to itself, read by three, passed on unchanged, a
parameter read twice by one operation, an output that is the input.
"""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.autograd.formulas import computed, gradients, normals, uniform_draws
from tests.autograd.played import play
from zerosim.autograd.graph import Graph
from zerosim.autograd.operations.attention import causal_attention, causal_self_attention, rotary, softmax
from zerosim.autograd.operations.dropout import dropout
from zerosim.autograd.operations.elementwise import gelu, relu, silu, tanh
from zerosim.autograd.operations.embedding import positions
from zerosim.autograd.operations.linear import affine, linear
from zerosim.autograd.operations.normalization import layer_norm, rms_norm
from zerosim.autograd.operations.shapes import reshape, transpose
from zerosim.autograd.player import Player
from zerosim.autograd.tape import Tape
from zerosim.models import transformer

SHAPE = (2, 4, 4)
PARAMETERS = {"table": (4, 4), "wide": (12, 4), "vector": (4,), "other": (4,), "like": SHAPE}
"""Few, so that they are often read twice."""

LINES = {
    "add": (2, lambda w, x, y: x + y),
    "add a parameter": (1, lambda w, x: x + w["like"]),
    "multiply": (2, lambda w, x, y: x * y),
    "multiply by a parameter": (1, lambda w, x: w["like"] * x),
    "square a parameter": (0, lambda w: w["like"] * w["like"]),
    "relu": (1, lambda w, x: relu(x)),
    "tanh": (1, lambda w, x: tanh(x)),
    "gelu": (1, lambda w, x: gelu(x)),
    "silu": (1, lambda w, x: silu(x)),
    "softmax": (1, lambda w, x: softmax(x)),
    "dropout": (1, lambda w, x: dropout(x, probability=0.3)),
    "linear": (1, lambda w, x: linear(x, w["table"], w["vector"])),
    "affine": (1, lambda w, x: affine(x, w["table"], w["other"])),
    "square a table": (1, lambda w, x: linear(x, linear(w["table"], w["table"]))),
    "positions": (1, lambda w, x: positions(x, w["table"])),
    "layer norm": (1, lambda w, x: layer_norm(x, w["vector"], w["other"])),
    "layer norm, one parameter": (1, lambda w, x: layer_norm(x, w["vector"], w["vector"])),
    "rms norm": (1, lambda w, x: rms_norm(x, w["other"])),
    "rotary": (1, lambda w, x: rotary(x, size=2, base=10.0)),
    "attention": (3, lambda w, q, k, v: causal_attention(q, k, v, heads=2, key_value_heads=2)),
    "attention to itself": (1, lambda w, x: causal_attention(x, x, x, heads=1, key_value_heads=1)),
    "self-attention": (1, lambda w, x: causal_self_attention(linear(x, w["wide"]), heads=2)),
    "reshape": (1, lambda w, x: reshape(gelu(reshape(x, shape=(8, 4))), shape=SHAPE)),
    "view": (1, lambda w, x: reshape(reshape(x, shape=(8, 4)), shape=SHAPE)),
    "transpose": (1, lambda w, x: transpose(transpose(x, axes=(0, 2, 1)), axes=(0, 2, 1))),
}
"""A line of a program: how many values it reads, and what it makes of them."""

programs = st.lists(st.tuples(st.sampled_from(sorted(LINES)), st.tuples(*[st.integers(0, 20)] * 3)), max_size=7)


def graph_of(program, result):
    """The lines one after another, each of values before it, chosen by number; the output is any of them."""
    graph = Graph(SHAPE)
    weights = {name: graph.parameter(name, shape) for name, shape in PARAMETERS.items()}
    values = [graph.input]
    for line, chosen in program:
        count, text = LINES[line]
        values.append(text(weights, *(values[-1 - number % len(values)] for number in chosen[:count])))
    graph.output = values[-1 - result % len(values)]
    return graph


def numbers(seed, dtype):
    x, upstream = (normals([seed, n], *SHAPE).astype(dtype) for n in range(2))
    weights = {n: normals([seed, i], *shape).astype(dtype) for i, (n, shape) in enumerate(PARAMETERS.items(), start=2)}
    return x, weights, upstream


def naive(graph, x, parameters, upstream):
    """As `play`, but nothing is shared, and all is kept; each operation widens 16 bits and rounds."""
    names = {variable.slot: name for name, variable in graph.parameters.items()}
    values, made = {graph.input.slot: x} | {slot: parameters[name] for slot, name in names.items()}, {}
    for each in graph.instructions:
        inputs = [wide(values[slot]) for slot in each.inputs.values()]
        y, saved = computed(each.operation, inputs, **known(each))
        values[each.output] = y.astype(x.dtype)
        made[each.output] = wide(y.astype(x.dtype)), None if saved is None else wide(saved.astype(x.dtype))
    found = {graph.output.slot: upstream}
    for each in reversed(graph.instructions):
        if each.output not in found:
            continue
        inputs = {name: wide(values[slot]) for name, slot in each.inputs.items()}
        upstream = wide(found.pop(each.output))
        terms = gradients(each.operation, inputs, upstream, [*each.inputs], made[each.output], **known(each))
        for name, slot in each.inputs.items():
            term = terms[name].astype(x.dtype)
            found[slot] = found[slot] + term if slot in found else term
    shapes = {**{slot: parameters[name] for slot, name in names.items()}, graph.input.slot: x}
    found = {slot: found.get(slot, np.zeros_like(array)) for slot, array in shapes.items()}
    return values[graph.output.slot], {**{name: found[slot] for slot, name in names.items()}, "input": found[0]}


def wide(array):
    return array.astype(np.float32) if array.dtype.itemsize < 4 else array.copy(order="K")


def known(instruction):
    draws = {"draws": uniform_draws} if instruction.operation.draws else {}
    return {**instruction.settings, **draws}


def check_bits(program, result, seed, dtype, of_input=True, split=False):
    graph = graph_of(program, result)
    x, weights, upstream = numbers(seed, dtype)
    before = {name: array.tobytes() for name, array in {**weights, "x": x}.items()}
    with np.errstate(all="ignore"):
        y, gradients = play(graph, x, weights, upstream, of_input=of_input, split=split)
        due, expected = naive(graph, x, weights, upstream)
    assert {name: array.tobytes() for name, array in {**weights, "x": x}.items()} == before
    assert y.tobytes() == due.tobytes()
    for name, gradient in gradients.items():
        assert gradient.astype(dtype).tobytes() == expected[name].tobytes(), name


def straight(program):
    """Without what lays numbers otherwise in memory: sums of rows then have a different order, and different bits."""
    return not any(line == "transpose" for line, _ in program)


result = st.integers(0, 3)
any_dtype = st.sampled_from(["f4", "f8", "f2", ml_dtypes.bfloat16])


@settings(max_examples=200)
@given(programs.filter(straight), result, st.integers(0, 2**32), any_dtype, st.booleans(), st.booleans())
def test_a_player_has_the_bits_of_one_that_copies_everything(program, result, seed, dtype, of_input, split):
    check_bits(program, result, seed, dtype, of_input, split)


right_add = Player._add


def last_term_alone(self, slot, given, dtype, gradients, *, shared):
    gradients.pop(slot, None)
    right_add(self, slot, given, dtype, gradients, shared=shared)


def into_what_is_passed_on(self, slot, given, dtype, gradients, *, shared):
    right_add(self, slot, given, dtype, gradients, shared=False)


def first_gradient_alone(self, name, found, contribution):
    if name not in contribution.written:
        contribution.views[name][...] = found
        contribution.written.add(name)


@pytest.mark.parametrize(("attribute", "wrong"), [
    ("_add", last_term_alone), ("_add", into_what_is_passed_on), ("_write", first_gradient_alone)])
def test_a_player_that_adds_wrongly_is_caught(monkeypatch, attribute, wrong):
    monkeypatch.setattr(Player, attribute, wrong)
    check = settings(max_examples=200, database=None, derandomize=True, phases=[Phase.generate])(
        lambda program, result, seed: check_bits(program, result, seed, "f4"))

    with pytest.raises((AssertionError, KeyError, ExceptionGroup)):
        given(programs.filter(straight), result, st.integers(0, 2**32))(check)()


def drawn_by(model, layers):
    """The layers and operations that dropout's numbers are drawn for, in forward, layer by layer."""
    calls = []
    tape = Tape(draw=lambda array, batch, layer, operation: (calls.append((layer, operation)), array.fill(1.0)))
    for unit in model.units[1 : 1 + layers]:
        tape.forward(unit, np.zeros(unit.count, np.float32), [np.zeros((1, 3, 4), np.float32)])
    return calls


def blocks(count, groups=None):
    shape = transformer.TransformerShape("gpt2", count, 4, 2, 2, 16, 7, 3, tied_embeddings=True, dropout=0.5)
    return transformer.transformer(shape, groups=groups)


def test_alike_segments_share_their_plans_and_draw_for_their_own_layers():
    model = blocks(3)
    first, second = (model.units[number].segments[0] for number in (1, 2))
    ways = {"of_parameters": True, "of_input": True}
    assert first.plan((1, 3, 4), **ways) is second.plan((1, 3, 4), **ways)
    assert first.plan((2, 3, 4), **ways) is not first.plan((1, 3, 4), **ways)
    first_layer, second_layer = drawn_by(model, 2)[:2], drawn_by(model, 2)[2:]
    assert second_layer == [(layer + 1, operation) for layer, operation in first_layer]


def test_sums_differences_and_multiples_are_operations():
    graph = Graph((2, 3))
    x = graph.input
    graph.output = 2 * (x * x) - x * 0.5 + -x
    assert [each.operation.name for each in graph.instructions] == [
        "multiply", "scale", "scale", "scale", "add", "scale", "add"]
    given_x = np.array([[1.0, -2.0, 3.0], [0.5, 0.25, -4.0]])
    y, found = play(graph, given_x, {}, np.ones((2, 3)))
    assert y.tolist() == (2 * given_x**2 - 1.5 * given_x).tolist()
    assert found["input"].tolist() == (4 * given_x - 1.5).tolist()
