"""Sums without an order: right, and the same however contributions are ordered and spread over ranks."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from zerosim.collectives import exact
from zerosim.core.fixed_point import exact_sum
from zerosim.verdict.diagnosis import bit_pattern, ulps_apart
from zerosim.worlds.local import spawn


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


def test_what_is_no_number_is_handled_apart():
    inf, nan = np.inf, np.nan
    left = np.array([nan, inf, inf, -inf, -0.0, -0.0, 3e38, 1.0], np.float32)
    right = np.array([1.0, 1.0, -inf, -inf, -0.0, 0.0, 3e38, inf], np.float32)
    total = exact_sum([left, right])
    assert np.isnan(total[[0, 2]]).all()
    assert total[[1, 3, 6, 7]].tolist() == [inf, -inf, inf, inf]
    assert bit_pattern(total[4:6]).tolist() == [0x80000000, 0]


def test_terms_far_below_the_largest_round_to_the_common_grid():
    assert exact_sum([np.array([1.0], np.float32), np.array([1e-30], np.float32), np.array([-1.0], np.float32)]) == 0


@given(st.integers(0, 30), st.sampled_from(["f4", "f8"]), st.integers(0, 5))
def test_any_spread_over_ranks_gives_the_same_bytes(count, dtype, seed):
    parts = np.random.default_rng(seed).standard_normal((12, count)).astype(dtype)
    due = exact_sum(list(parts)).tobytes()
    for ranks in (1, 2, 3, 4, 6):
        each = 12 // ranks
        found = spawn(lambda comm: exact.all_reduce(comm, list(parts[comm.rank * each:][:each])).tobytes(), ranks)
        assert found == [due] * ranks


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize(("left", "right", "due"), [
    (-np.inf, 1.0, -np.inf), (np.inf, 1.0, np.inf), (np.inf, -np.inf, np.nan), (np.nan, 1.0, np.nan),
])
def test_numbers_beside_what_is_no_number_change_nothing(dtype, left, right, due):
    for x in ([left, right], [right, left]):
        np.testing.assert_array_equal(exact_sum([np.array([each], dtype) for each in x]), [due])


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6, 12])
def test_the_grid_is_that_of_all_contributions_however_they_are_spread(ranks):
    """Half a step of the grid of twelve is lost in it, and would not be in that of fewer."""
    values = [1.0, -1.0, 2.0**-58, *[0.0] * 9]
    parts, each = [np.full(3, value, np.float32) for value in values], 12 // ranks
    assert exact_sum(parts).tolist() == [0.0] * 3
    found = spawn(lambda comm: exact.all_reduce(comm, parts[comm.rank * each:][:each]).tolist(), ranks)
    assert found == [[0.0] * 3] * ranks


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
