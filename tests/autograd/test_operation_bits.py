"""Every operation has, forward and backward, the bits of another one, written from docs/computation.md alone."""

import numpy as np
import pytest

from tests.autograd.formulas import KITS, OPERATIONS, computed, gradients, nan, normals
from tests.independent import mlp as independent
from tests.independent import transformer as other
from zerosim.autograd.operations import shapes
from zerosim.autograd.operations.losses import LOSSES, counted

ONE_HEAD = {"heads": 1, "key_value_heads": 1}
SHARED = {"heads": 6, "key_value_heads": 2}


def of_numbers(backward, *, of_y=False):
    """Of an operation on each number: backward reads x, or y."""
    return lambda u, y, x: {"x": backward(u, y if of_y else x)}


def by_name(names, backward):
    """What a function of upstream and inputs returns, in order, by the names of the inputs."""
    return lambda u, y, *inputs: dict(zip(names.split(), backward(u, *inputs), strict=True))


def attention(heads, groups):
    def backward(u, y, q, k, v):
        _, p = other.attention(q, k, v, heads, groups)
        return dict(zip("qkv", other.attention_backward(u, q, k, v, p, heads, groups), strict=True))
    return backward


def self_attention(heads):
    def backward(u, y, x):
        return {"qkv": other.self_attention_backward(u, x, other.self_attention(x, heads)[1], heads)}
    return backward


def in_turn(rows, terms):
    """Rows to which terms are added one after the other, each to the row of its number; none at −1."""
    for at, term in terms:
        if at >= 0:
            rows[at] = rows[at] + term
    return rows


ROUTES = np.array([[3, 0, 3], [4, -1, 0], [-1, -1, -1], [0, 4, 4]])
TOKENS = np.array([[3, 0, 3], [4, 3, 0]])
CUBE = (3, 5, 12)
ROWS = (12,)
CASES = {
    "relu": ("elementwise.relu", [CUBE], {}, of_numbers(independent.BACKWARD["relu"], of_y=True)),
    "tanh": ("elementwise.tanh", [CUBE], {}, of_numbers(independent.BACKWARD["tanh"], of_y=True)),
    "sigmoid": ("elementwise.sigmoid", [CUBE], {}, of_numbers(lambda u, y: u * ((1.0 - y) * y), of_y=True)),
    "scale": ("elementwise.scale", [CUBE], {"factor": -0.3}, of_numbers(lambda u, x: u * x.dtype.type(-0.3))),
    "gelu": ("elementwise.gelu", [CUBE], {}, of_numbers(independent.gelu_backward)),
    "gelu, exact": ("elementwise.gelu_exact", [CUBE], {}, of_numbers(independent.gelu_exact_backward)),
    "silu": ("elementwise.silu", [CUBE], {}, of_numbers(other.silu_backward)),
    "multiply": ("elementwise.multiply", [CUBE, CUBE], {}, by_name("x other", lambda u, x, y: (u * y, u * x))),
    "linear": ("linear.linear", [(7, 5), (4, 5), (4,)], {}, by_name(
        "weight bias x", lambda u, x, w, b: independent.linear_backward(u, x, w))),
    "linear, without a bias": ("linear.linear", [CUBE, (4, 12)], {}, by_name("x weight", other.project_backward)),
    "linear, of tokens": ("linear.linear", [CUBE, (4, 12), (4,)], {}, by_name(
        "x weight bias", lambda u, x, w, b: (*other.project_backward(u, x, w), np.sum(other.rows(u), axis=0)))),
    "affine": ("linear.affine", [CUBE, (12, 4), (4,)], {}, by_name(
        "x weight bias", lambda u, x, w, b: other.affine_backward(u, x, w))),
    "add bias": ("linear.add_bias", [CUBE, ROWS], {}, by_name(
        "x bias", lambda u, x, b: (u, np.sum(other.rows(u), axis=0)))),
    "layer norm": ("normalization.layer_norm", [CUBE, ROWS, ROWS], {}, by_name(
        "x weight bias", lambda u, x, w, b: other.ln_backward(u, x, w))),
    "rms norm": ("normalization.rms_norm", [CUBE, ROWS], {}, by_name("x weight", other.rms_backward)),
    "rotary": ("attention.rotary", [CUBE], {"size": 4, "base": 10000.0}, of_numbers(
        lambda u, x: other.turned(u, 3, back=True))),
    "attention": ("attention.causal_attention", [CUBE] * 3, ONE_HEAD, attention(1, 1)),
    "attention, shared": ("attention.causal_attention", [CUBE, (3, 5, 4), (3, 5, 4)], SHARED, attention(6, 2)),
    "attention, narrow values": ("attention.causal_attention", [CUBE, CUBE, (3, 5, 8)], {
        "heads": 2, "key_value_heads": 2}, attention(2, 2)),
    "join_heads": ("attention.join_heads", [CUBE, (3, 5, 1)], {"heads": 4, "other_heads": 1}, lambda u, y, x, other: {
        "x": np.delete(u, np.s_[3::4], axis=-1),
        "other": ((u[..., 3:4] + u[..., 7:8]) + u[..., 11:12]) + u[..., 15:]}),
    "self-attention": ("attention.causal_self_attention", [CUBE], {"heads": 2}, self_attention(2)),
    "embedding": ("embedding.embedding", [TOKENS, (5, 4)], {}, lambda u, y, tokens, table: {
        "weight": other.embed_backward(u, tokens, len(table))}),
    "positions": ("embedding.positions", [CUBE, (8, 12)], {}, lambda u, y, x, table: {
        "weight": other.positions_backward(u, 8)}),
    "matmul": ("linear.matmul", [(3, 5, 12), (3, 12, 4)], {}, by_name("x weight", lambda u, x, w: (
        np.stack([a @ b.T for a, b in zip(u, w, strict=True)]),
        np.stack([a.T @ b for a, b in zip(x, u, strict=True)])))),
    "take along": ("routing.take_along", [(2, 5), np.array([[4, 1, 4], [0, 0, 0]])], {}, lambda u, y, x, places: {
        "x": np.stack([
            in_turn(np.zeros_like(x[0]), zip(*pair, strict=True)) for pair in zip(places, u, strict=True)])}),
    "gather rows": ("routing.gather_rows", [(5, 4), ROUTES], {}, lambda u, y, x, places: {
        "x": in_turn(np.zeros_like(x), zip(places.ravel(), u.reshape(-1, 4), strict=True))}),
    "scatter rows": ("routing.scatter_rows", [(4, 3), ROUTES], {"count": 5}, lambda u, y, x, places: {
        "x": np.stack([
            in_turn(np.zeros((1, 3), u.dtype), ((0, u[at]) for at in each if at >= 0))[0] for each in places])}),
}


@pytest.mark.parametrize(("dtype", "piece"), [("f4", shapes.PIECE), ("f8", shapes.PIECE), ("f4", 50), ("f4", 1)])
@pytest.mark.parametrize("case", CASES)
def test_an_operation_has_the_bits_of_an_independent_one(case, dtype, piece, monkeypatch):
    """Pieces of 50 numbers are several rows, the last piece has fewer; those of 1 are a row each."""
    monkeypatch.setattr(shapes, "PIECE", piece)
    name, sizes, settings, backward = CASES[case]
    operation = OPERATIONS[name]
    inputs = [each if isinstance(each, np.ndarray) else 3 * normals([1, number], *each).astype(dtype)
              for number, each in enumerate(sizes)]
    y, _ = computed(operation, inputs, **settings)
    assert y.tobytes() == KITS[name].plain(*inputs, **settings).tobytes()
    upstream = normals(2, *y.shape).astype(dtype)
    due = backward(upstream, y, *inputs)
    named = dict(zip(operation.inputs, inputs, strict=False))
    found = gradients(operation, named, upstream, [name for name in named if name in operation.needs], **settings)
    assert {name: each.tobytes() for name, each in found.items()} == {
        name: due.get(name, upstream).tobytes() for name in found}


def test_an_output_whose_rows_are_no_view_is_written_all_the_same(monkeypatch):
    monkeypatch.setattr(shapes, "PIECE", 1)
    x, out = np.ones((2, 3, 4)).T, np.zeros((2, 3, 4)).T
    shapes.piecewise(lambda x, out: np.multiply(x, 2.0, out=out), x, out, empty=np.empty)
    assert (out == 2.0).all()


def test_every_operation_that_computes_is_among_them():
    moving = {
        "elementwise.add", "attention.softmax", "dropout.dropout", "shapes.reshape", "shapes.transpose",
        "routing.top_indices", "routing.one_hot", "routing.queue_slots",
    }
    assert {name for name, *_ in CASES.values()} == OPERATIONS.keys() - moving


@pytest.mark.parametrize(("name", "shape"), [("cross_entropy", (6, 5)), ("mean_squared_error", (6, 5))])
def test_a_loss_has_the_bits_of_an_independent_one(name, shape):
    outputs = 3 * normals(3, *shape).astype(np.float32)
    targets = np.array([0, 4, 1, 1, 2, 3]) if name == "cross_entropy" else normals(4, *shape).astype(np.float32)
    loss, upstream = LOSSES[name](outputs, targets, 24 * counted(targets) // 6, empty=nan)
    due, gradient = getattr(independent, name)(outputs, targets, 24)
    assert (loss.tobytes(), upstream.tobytes()) == (due.tobytes(), gradient.tobytes())


def test_a_number_passes_dropout_where_what_is_drawn_is_at_least_the_probability():
    def draws(array):
        array[...] = [0.0, np.nextafter(np.float32(0.25), np.float32(0)), 0.25, 1.0]

    dropout, threes = OPERATIONS["dropout.dropout"], np.full(4, 3.0, "f4")
    drawing = {"probability": 0.25, "draws": draws}
    assert computed(dropout, [threes], **drawing)[0].tolist() == [0, 0, 4, 4]
    assert gradients(dropout, {"x": threes}, threes, ["x"], **drawing)["x"].tolist() == [0, 0, 4, 4]
