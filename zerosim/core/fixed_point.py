"""Sums of floats that do not depend on the order of addition: fixed point under a common exponent.

    K          contributions to each sum
    exponent   one for each element: the least e with |x| < 2**e for all of its contributions
    grid       2**(exponent − BITS + ⌈log2 K⌉): each contribution is rounded to a multiple of it, half to even
    BITS       62, so that K multiples below 2**(62 − ⌈log2 K⌉) add up in an int64
    limb       one of the integers that stand for a float: one for up to 32 bits, two for float64

Adding integers is associative, so only the rounding to the grid matters, and that depends on one contribution at a
time. A float32, with its 24 bits, is a multiple of the grid exactly as long as it lies within 2**−(38 − ⌈log2 K⌉) of
the largest (2**−30 for 256 contributions); smaller ones round to the grid. A float64 has 53 bits, so its remainder
below the grid goes into a second integer, with a finer grid: two limbs. The sum is then rounded to the dtype: if
every contribution lies within 2**−30 of the largest, to within one ULP of the exact sum. Smaller ones cost up to half
a grid step each, which after cancellation may be the whole result.

Elements with NaN or infinities are handled separately: their integers count each of them. So are sums of zeros
only, which are −0 when every contribution is.

The exponent is common to one element, not to a whole tensor. Small gradients in a tensor with large ones therefore
keep their bits, and the bound above refers to the terms of one sum. The price is a max all-reduce of 16-bit exponents,
and 8 bytes instead of 4 for each element of a sum.

A known weakness: a sum in bfloat16 is rounded twice, because ml_dtypes casts from float64 through float32. The bits
are still the same in every order.
"""

from collections.abc import Sequence
from functools import reduce

import numpy as np
import numpy.typing as npt

from zerosim.core.allocation import Array

BITS = 62
ZEROS = -32_000
"""The exponent of an element with zero contributions only."""
SPECIAL = 32_000
"""The exponent of an element with a NaN or an infinity."""

PLUS_INFINITY, MINUS_INFINITY, NOT_A_NUMBER = 1, 1 << 20, 1 << 40
"""The integers that infinities and NaNs add to a special element: enough for a million of either."""

Exponents = npt.NDArray[np.int16]
Integers = npt.NDArray[np.int64]


def exponents(contributions: Sequence[Array]) -> Exponents:
    """The exponent of the largest contribution to each element, or `ZEROS`, or `SPECIAL`.

    The exponents of several groups of contributions combine by their maximum.

    >>> exponents([np.array([1.0, 0.0, np.inf]), np.array([-6.0, 0.0, 1.0])]).tolist()
    [3, -32000, 32000]
    """
    largest = np.full(len(contributions[0]), ZEROS, np.int16)
    for x in contributions:
        _, exponent = np.frexp(x.astype(np.float64))
        exponent = np.where(x == 0, ZEROS, exponent)
        np.maximum(largest, np.where(np.isfinite(x), exponent, SPECIAL), out=largest, casting="unsafe")
    return largest


def limbs(dtype: npt.DTypeLike) -> int:
    """The number of integers that stand for one float: 2 for float64, 1 for narrower dtypes."""
    return 2 if np.dtype(dtype).itemsize == np.float64().itemsize else 1


def quantised(x: Array, exponent: Exponents, terms: int) -> Integers:
    """One contribution of `terms` as integers (limbs, elements): multiples of the grid, then of the finer one.

    The first limb of a special element holds a mark instead.
    """
    special, zeros = exponent == SPECIAL, exponent == ZEROS
    shift = np.where(special | zeros, 0, bits(terms) - exponent.astype(np.int32))
    rest = np.ldexp(np.where(special, 0, x.astype(np.float64)), shift)
    integers = np.empty((limbs(x.dtype), len(x)), np.int64)
    for limb in integers:
        whole = np.rint(rest)
        limb[:] = whole
        rest = np.ldexp(rest - whole, bits(terms))
    of_special = x[special]
    integers[0, special] = np.select(
        [np.isnan(of_special), of_special == np.inf, of_special == -np.inf],
        [NOT_A_NUMBER, PLUS_INFINITY, MINUS_INFINITY], 0)
    integers[0, zeros] = np.signbit(x[zeros])
    return integers


def total_of(contributions: Sequence[Array], exponent: Exponents, terms: int) -> Integers:
    """The sum of the integers of some of `terms` contributions."""
    total: Integers = reduce(np.add, (quantised(x, exponent, terms) for x in contributions))
    return total


def restored(total: Integers, exponent: Exponents, terms: int, dtype: npt.DTypeLike) -> Array:
    """The sums of the integers (limbs, elements), as `dtype`."""
    special, zeros = exponent == SPECIAL, exponent == ZEROS
    shift = np.where(special | zeros, 0, exponent.astype(np.int32) - bits(terms))
    high = (total[0] + (1 << 31)) >> 32  # so that a small total is all in `rest`, next to the finer limb
    rest = (total[0] - (high << 32)).astype(np.float64)
    for depth, limb in enumerate(total[1:], start=1):
        rest += np.ldexp(limb.astype(np.float64), -depth * bits(terms))
    with np.errstate(over="ignore"):
        sums = np.ldexp(np.ldexp(high.astype(np.float64), 32) + rest, shift)
        nans, infinities = np.divmod(total[0, special], NOT_A_NUMBER)
        minus, plus = np.divmod(infinities, MINUS_INFINITY)
        undefined = (nans > 0) | ((minus > 0) & (plus > 0))
        sums[special] = np.select([undefined, plus > 0], [np.nan, np.inf], -np.inf)
        sums[zeros] = np.where(total[0, zeros] == terms, -0.0, 0.0)
        rounded: Array = sums.astype(dtype)
    return rounded


def bits(terms: int) -> int:
    """The number of bits of a contribution with which `terms` of them add up without overflow.

    >>> bits(1), bits(4), bits(5)
    (62, 60, 59)
    """
    return BITS - (terms - 1).bit_length()


def exact_sum(contributions: Sequence[Array]) -> Array:
    """The sum of float vectors, element by element: the same bits in any order.

    >>> exact_sum([np.array([2.0**30]), np.array([1.0]), np.array([-(2.0**30)])]).tolist()
    [1.0]
    """
    terms, exponent = len(contributions), exponents(contributions)
    return restored(total_of(contributions, exponent, terms), exponent, terms, contributions[0].dtype)
