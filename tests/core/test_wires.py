"""Wire formats against a quantiser that was written as scalar loops: to the byte, both ways."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core import quantiser
from zerosim.core import wires
from zerosim.core.bits import with_one_nan
from zerosim.core.wires import CODES, Format

NAMES = st.sampled_from(list(CODES))
BLOCKS = st.sampled_from([0, 1, 2, 3, 5, 8, 64, 10**9])
NUMBERS = st.one_of(
    st.floats(width=32), st.integers(-254, 254).map(lambda n: n / 2), st.sampled_from(
        [0.0, -0.0, 1e-45, -1e-45, 1e-40, 3.4028234663852886e38, float("inf"), float("-inf"), float("nan")]))
ARRAYS = st.lists(NUMBERS, max_size=40).map(lambda values: np.array(values, np.float32))


def encoded(chosen, x):
    out = np.full(chosen.encoded_bytes(len(x)), 0xAA, np.uint8)
    with np.errstate(all="ignore"):
        chosen.encode(x, out)
    return out


def decoded(chosen, coded, count, dtype=np.float32):
    out = np.empty(count, dtype)
    with np.errstate(all="ignore"):
        chosen.decode(coded, out)
    return out


@settings(max_examples=300, deadline=None)
@given(NAMES, BLOCKS, ARRAYS)
def test_every_byte_is_that_of_an_independent_quantiser(name, block, x):
    chosen = Format(name, block)
    coded = encoded(chosen, x)
    message = quantiser.encode(name, block, x)
    assert coded.tobytes() == message
    back = decoded(chosen, coded, len(x))
    assert back.tobytes() == with_one_nan(quantiser.decode(name, block, message, len(x))).tobytes()


@pytest.mark.parametrize("name", CODES)
@pytest.mark.parametrize("block", [0, 3, 16])
def test_long_arrays_are_encoded_in_pieces_as_short_ones_are(name, block, monkeypatch):
    x = np.random.default_rng(0).standard_normal(61).astype(np.float32)
    whole = encoded(Format(name, block), x)
    monkeypatch.setattr(wires, "PIECE", 4)
    assert encoded(Format(name, block), x).tobytes() == whole.tobytes() == quantiser.encode(name, block, x)
    assert decoded(Format(name, block), whole, len(x)).tobytes() == quantiser.decode(
        name, block, whole.tobytes(), len(x)).tobytes()


@pytest.mark.parametrize(("name", "halves"), [("int8", 126.5), ("int4", 6.5)])
def test_halves_are_rounded_to_even(name, halves):
    """A scale of 1: the largest element is the largest code."""
    x = np.array([CODES[name].largest, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, halves], np.float32)
    assert Format(name, 0).arriving(x).tolist() == [CODES[name].largest, 0, 2, 2, 0, -2, -2, np.rint(halves)]


@settings(max_examples=100, deadline=None)
@given(NAMES, BLOCKS, ARRAYS, st.integers(0, 9))
def test_zeros_behind_an_array_change_nothing_of_it_and_stay_zeros(name, block, x, more):
    """Padding: the last block of a chunk may have it."""
    chosen, padded = Format(name, block), np.concatenate([x, np.zeros(more, np.float32)])
    with np.errstate(all="ignore"):
        one, other = chosen.arriving(x), chosen.arriving(padded)
    assert other[: len(x)].tobytes() == one.tobytes()
    assert other[len(x) :].tobytes() == bytes(4 * more)


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16])
def test_numbers_of_16_bits_are_widened_first_and_rounded_last(kind):
    x = np.random.default_rng(1).standard_normal(50).astype(kind)
    chosen = Format("int8", 8)
    assert encoded(chosen, x).tobytes() == encoded(chosen, x.astype(np.float32)).tobytes()
    back = decoded(chosen, encoded(chosen, x), len(x), kind)
    assert back.tobytes() == decoded(chosen, encoded(chosen, x), len(x)).astype(kind).tobytes()
    assert chosen.arriving(x).dtype == kind


@pytest.mark.parametrize(("name", "block", "count", "expected"), [
    ("int8", 256, 1024, 1040), ("int4", 256, 1024, 528), ("int4", 0, 7, 8), ("fp8_e4m3", 0, 10, 14), ("int8", 4, 0, 0),
])
def test_bytes_by_the_formula(name, block, count, expected):
    assert Format(name, block).encoded_bytes(count) == expected


@pytest.mark.parametrize("name", CODES)
def test_a_block_that_is_longer_than_the_array_costs_no_more_than_the_array(name, monkeypatch):
    x, zeros, made = np.arange(1001, dtype=np.float32), np.zeros, []
    monkeypatch.setattr(np, "zeros", lambda count, dtype: made.append(count) or zeros(count, dtype))
    assert Format(name, 10**9).arriving(x).tobytes() == Format(name, 0).arriving(x).tobytes()
    assert max(made) == 1001
