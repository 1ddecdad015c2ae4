"""Sums without an order: right, and the same however contributions are ordered and spread over ranks."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from zerosim.core.fixed_point import exact_sum
from zerosim.verdict.diagnosis import ulps_apart


@st.composite
def vectors(draw, dtype, **bounds):
    terms, count = draw(st.integers(1, 24)), draw(st.integers(1, 6))
    return draw(arrays.arrays(dtype, (terms, count), elements=arrays.from_dtype(np.dtype(dtype), **bounds)))


@given(st.one_of(vectors("f4"), vectors("f8"), vectors("f2")), st.randoms())
def test_any_order_gives_the_same_bytes(x, random):
    rows = list(x)
    total = exact_sum(rows)
    random.shuffle(rows)
    with np.errstate(invalid="ignore"):
        assert exact_sum(rows).tobytes() == total.tobytes()


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("terms", [1, 2, 3, 24, 256])
def test_within_one_ulp_of_the_exact_sum(dtype, terms):
    """Terms within 2**−30 of the largest, half of the sums cancelling almost to nothing."""
    random = np.random.default_rng(terms)
    mantissa = random.choice([-1, 1], (terms, 400)) * (1 + random.random((terms, 400)))
    x = np.ldexp(mantissa, random.integers(-14, 15, (terms, 400))).astype(dtype)
    x[:, ::2] = np.where(np.arange(terms)[:, np.newaxis] % 2, -np.roll(x, 1, axis=0)[:, ::2], x[:, ::2])
    for found, column in zip(exact_sum(list(x)), x.T.astype(float), strict=True):
        due = np.dtype(dtype).type(math.fsum(column))
        assert ulps_apart(found, due) <= 1


def test_addition_from_left_to_right_would_not_be_within_one_ulp():
    x = [np.array([value], np.float32) for value in (2.0**20, 1.0 + 2.0**-20, -(2.0**20))]
    due = np.float32(1.0 + 2.0**-20)
    assert ulps_apart(((x[0] + x[1]) + x[2])[0], due) > 1
    assert exact_sum(x)[0] == due


def test_terms_far_below_the_largest_round_to_the_common_grid():
    assert exact_sum([np.array([1.0], np.float32), np.array([1e-30], np.float32), np.array([-1.0], np.float32)]) == 0


GRID = 2.0**-59
"""Of three contributions of which the largest is 1."""


@pytest.mark.parametrize(("dtype", "grid"), [("f4", GRID), ("f8", GRID * 2.0**-60)])
@pytest.mark.parametrize(("steps", "rounded"), [(0.25, 0), (0.5, 0), (0.75, 1), (1.5, 2), (2.5, 2)])
@pytest.mark.parametrize("sign", [1, -1])
def test_contributions_round_to_the_nearest_step_of_the_grid_half_to_even(dtype, grid, steps, rounded, sign):
    x = np.array([[1.0], [-1.0], [sign * steps * grid]], dtype)
    assert exact_sum(list(x)) == [sign * rounded * grid]


@pytest.mark.parametrize("sign", [1, -1])
def test_a_small_sum_keeps_the_finer_limb(sign):
    x = sign * GRID * (1 + 2.0**-50)
    assert exact_sum([np.array([1.0]), np.array([-1.0]), np.array([x])]) == [x]
