"""Optimizers against their formulas, against PyTorch, and against themselves cut in pieces."""

import math
import random
import tracemalloc
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerosim.optim.optimizers import OPTIMIZERS, PIECE, Hyperparameters, adam, apply

SAFETY = 10
"""Roundings may all go one way."""

optimizers = pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS.get)
hyperparameters = st.builds(
    Hyperparameters,
    learning_rate=st.floats(1e-4, 1.0),
    betas=st.tuples(st.floats(0.0, 0.99), st.floats(0.0, 0.999)),
    epsilon=st.sampled_from([1e-8, 1e-4]),
    momentum=st.floats(0.0, 0.99),
    weight_decay=st.sampled_from([0.0, 0.01, 0.5]),
)


def zeros(optimizer, count, dtype):
    return {slot: np.zeros(count, dtype) for slot in optimizer.slots}


def check_cuts(optimizer, h, count, cuts, seed):
    """Three steps on the whole vector and three on its cuts must leave the same bytes."""
    rng = np.random.default_rng(seed)
    whole, *gradients = rng.standard_normal((4, count), np.float32)
    pieces, states = whole.copy(), zeros(optimizer, count, np.float32)
    cut_states = zeros(optimizer, count, np.float32)
    edges = [0, *sorted(cuts), count]
    for step, gradient in enumerate(gradients, start=1):
        before = gradient.tobytes()
        optimizer.update(whole, gradient, states, step, h)
        for start, stop in pairwise(edges):
            cut = slice(start, stop)
            state = {slot: array[cut] for slot, array in cut_states.items()}
            optimizer.update(pieces[cut], gradient[cut], state, step, h)
        assert gradient.tobytes() == before
    assert pieces.tobytes() == whole.tobytes(), "cuts changed the weights"
    assert all(cut_states[slot].tobytes() == states[slot].tobytes() for slot in states)


@given(st.sampled_from(list(OPTIMIZERS.values())), hyperparameters, st.data())
def test_however_a_vector_is_cut_its_bits_come_out_the_same(optimizer, h, data):
    count = data.draw(st.sampled_from([1, 2, 37, 1000, PIECE, 2 * PIECE + 13]), label="count")
    cuts = data.draw(st.lists(st.integers(0, count), max_size=5), label="cuts")
    check_cuts(optimizer, h, count, cuts, data.draw(st.integers(0, 99), label="seed"))


def test_an_optimizer_that_looks_beyond_its_element_is_caught():
    def normalised(g, *, t, h, a, b):
        a[:] = h.learning_rate * g / np.abs(g).max()

    planted = replace(OPTIMIZERS["sgd"], formula=normalised)
    with pytest.raises(AssertionError, match="cuts changed the weights"):
        check_cuts(planted, Hyperparameters(), 100, [40], 0)


def by_formula(name, w, gradients, h, rounded=float):
    """The published formulas, an element at a time, of which each term is `rounded`."""
    m = v = 0.0
    beta1, beta2 = h.betas
    for t, gradient in enumerate(gradients, start=1):
        g = rounded(gradient) + rounded((0 if name == "adamw" else h.weight_decay) * w)
        if name == "adamw":
            w = rounded(w - h.learning_rate * h.weight_decay * w)
        if name == "sgd":
            w = rounded(w - h.learning_rate * g)
        elif name == "momentum":
            m = g if t == 1 else rounded(h.momentum * m) + g
            w = rounded(w - h.learning_rate * m)
        else:
            m = rounded(beta1 * m) + rounded((1 - beta1) * g)
            v = rounded(beta2 * v) + rounded((1 - beta2) * g * g)
            unbiased, spread = m / (1 - beta1**t), math.sqrt(v / (1 - beta2**t))
            w = rounded(w - h.learning_rate * unbiased / (spread + h.epsilon))
    return w


def moved_by_rounding(name, w, gradients, h, dtype):
    """How far apart the formula ends if each term is rounded in one way or another, as far as `dtype` may.

    Adam divides by the root of v, which with a small second beta is the last gradient: if that is nearly 0, m is not.
    """
    chance, most = random.Random(0), float(np.finfo(dtype).eps)
    ends = [
        by_formula(name, w, gradients, h, lambda term: term * (1 + chance.uniform(-most, most))) for _ in range(8)]
    return max(ends) - min(ends)


@given(
    st.sampled_from(list(OPTIMIZERS)), hyperparameters, st.integers(1, 5), st.integers(0, 2**32)
)
def test_updates_are_the_published_formulas(name, h, steps, seed):
    check_formula(OPTIMIZERS[name], h, steps, seed)


def uncorrected(g, m, v, *, t, h, a, b):
    adam(g, m, v, t=10**9, h=h, a=a, b=b)


def with_epsilon_within(g, m, v, *, t, h, a, b):
    v += h.epsilon
    adam(g, m, v, t=t, h=h, a=a, b=b)
    v -= h.epsilon


@pytest.mark.parametrize("formula", [uncorrected, with_epsilon_within])
@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.4, 1e-3)])
def test_another_formula_is_caught(formula, betas):
    h = Hyperparameters(learning_rate=0.5, betas=betas, epsilon=1e-4, weight_decay=0.5)
    check_formula(OPTIMIZERS["adam"], h, 3, 557)
    with pytest.raises(AssertionError):
        check_formula(replace(OPTIMIZERS["adam"], formula=formula), h, 3, 557)


def check_formula(optimizer, h, steps, seed):
    name = optimizer.name
    weights, *gradients = np.random.default_rng(seed).standard_normal((steps + 1, 7))
    elements = list(zip(weights, *gradients, strict=True))
    expected = np.array([by_formula(name, w, gs, h) for w, *gs in elements])
    for dtype, tolerance in ((np.float64, 1e-11), (np.float32, 1e-4)):
        ours, state = weights.astype(dtype), zeros(optimizer, 7, dtype)
        for step, gradient in enumerate(gradients, start=1):
            optimizer.update(ours, gradient.astype(dtype), state, step, h)
        assert ours.dtype == dtype
        moved = np.array([moved_by_rounding(name, w, gs, h, dtype) for w, *gs in elements])
        assert np.all(abs(ours - expected) <= tolerance * (1 + abs(expected)) + SAFETY * moved)


@pytest.mark.parametrize(("name", "expected"), [
    ("sgd", [0.5009994985, -1.25275524675, 1.9980119950000002, -0.12462737487600001]),
    ("momentum", [0.5015871985, -1.24832859675, 1.9876709950000002, -0.124301258076]),
    ("adam", [0.4957502742941267, -1.2399787060151177, 1.9803079291094772, -0.09511835119843949]),
    ("adamw", [0.49763497777787113, -1.244128152890242, 1.981166032579985, -0.1343794959679544]),
])
def test_three_steps_end_where_pytorch_2_13_ends(name, expected):
    weights = np.array([0.5, -1.25, 2.0, -0.125])
    state = zeros(OPTIMIZERS[name], 4, np.float64)
    gradients = [[0.1, -0.2, 0.3, 1e-4], [-0.4, 0.25, 0.0, -2e-4], [0.05, 0.6, -0.7, 3e-4]]
    for step, gradient in enumerate(gradients, start=1):
        h = Hyperparameters(learning_rate=0.01, weight_decay=0.1)
        OPTIMIZERS[name].update(weights, np.array(gradient), state, step, h)
    np.testing.assert_allclose(weights, expected, rtol=1e-14)


@given(st.sampled_from(list(OPTIMIZERS.values())), hyperparameters, st.integers(0, 99))
def test_applying_the_differences_elsewhere_gives_the_same_bytes(optimizer, h, seed):
    rng = np.random.default_rng(seed)
    here, *gradients = rng.standard_normal((3, 100), np.float32)
    there = here.copy()
    state, other_state = zeros(optimizer, 100, np.float32), zeros(optimizer, 100, np.float32)
    for step, gradient in enumerate(gradients, start=1):
        optimizer.update(here, gradient, state, step, h)
        for piece, difference in optimizer.differences(there, gradient, other_state, step, h):
            apply(there[piece], difference.copy(), optimizer.decay(h))
    assert here.tobytes() == there.tobytes()


def test_a_gradient_factor_is_a_multiplication_of_the_gradient():
    for optimizer in OPTIMIZERS.values():
        weights, gradient = np.random.default_rng(0).standard_normal((2, 50), np.float32)
        other = weights.copy()
        optimizer.update(weights, gradient, zeros(optimizer, 50, np.float32), 1, Hyperparameters(gradient_factor=0.3))
        optimizer.update(other, gradient * np.float32(0.3), zeros(optimizer, 50, np.float32), 1, Hyperparameters())
        assert weights.tobytes() == other.tobytes()


@optimizers
def test_an_update_needs_little_memory_besides(optimizer):
    weights, gradient = np.zeros((2, 4_000_000), np.float32)
    state = zeros(optimizer, len(weights), np.float32)
    tracemalloc.start()
    try:
        optimizer.update(weights, gradient, state, 1, Hyperparameters(weight_decay=0.1))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0 < peak < 1_000_000
