"""Kinds of numbers on which a collective can be wrong, each with a purpose.

    exact        small whole numbers, in dtypes where every order of addition gives the same bits
    full         odd numbers that need almost every bit of their dtype; sums of 32 are exact
    tiny         multiples of the least subnormal number; their sums are exact
    limits       infinities, NaN and −0, whose sums are the same in every order
    cancelling   big, −big, 1 and tiny: almost every order of addition gives different bits
    random       normally distributed, rounded
    wide         normally distributed times powers of 2, over half of the exponents
    special      ±0, ±inf, NaN, subnormals, the largest: bytes that only copying keeps

Where numbers are added, all NaNs are alike: IEEE 754 leaves the payload of NaN + NaN to the processor, which takes that
of the first operand or of the second, so a + b and b + a differ. A copy keeps the payload.
"""

from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from zerosim.core.allocation import Array
from zerosim.core.bits import with_one_nan
from zerosim.core.errors import UsageError

FLOATS = ("float64", "float32", "float16", "bfloat16")
WIDE = ("float64", "float32", "int64", "int32")
ONE_SUM = ("exact", "full", "tiny", "limits")
"""The kinds whose sums are the same in every order."""
DTYPES = {"exact": WIDE, "full": (*WIDE, "float16", "bfloat16")}
"""The dtypes of kinds that are not for all `FLOATS` and no others."""
SPARE_BITS = 6
"""The bits that a `full` number leaves for sums: one for its steps in the table, and five for 32 of them."""


@cache
def alphabet(values: str, dtype: str) -> Array:
    """The elements from which vectors of a kind are drawn.

    >>> alphabet("exact", "int32")[[0, 1, 2, -3, -2, -1]]
    array([ 1,  2,  3, -2, -1,  0], dtype=int32)
    >>> alphabet("full", "float64")[:2] - 2.0**47
    array([-1.00000000e+00, -2.81474977e+14])
    """
    whole = np.dtype(dtype).kind == "i"
    limits: Any = None if whole else ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    match values:
        case "exact":
            elements: Any = [*range(1, 193), *range(-63, 1)]
        case "full":
            top = 2 ** ((np.iinfo(dtype).bits - 1 if whole else limits.nmant + 1) - SPARE_BITS)
            elements = [(-1) ** number * (top - number % (top // 2) * 2 - 1) for number in range(64)]
        case "tiny":
            least = float(limits.smallest_subnormal)
            elements = [number * least for number in range(-12, 13) if number]
        case "limits":
            elements = [1, 2, -3, -0.0, np.nan, np.inf, -np.inf]
        case "cancelling":
            big = 2.0 ** (limits.nmant + 2)
            elements = [1, big, -big, 1 / big, -1 / big, 3, -1, 0]
        case "random":
            elements = np.random.default_rng(0).standard_normal(256)
        case "wide":
            powers = np.arange(limits.minexp // 2, limits.maxexp // 2)
            elements = np.random.default_rng(1).standard_normal(256) * 2.0 ** np.resize(powers, 256)
        case "special":
            least = float(limits.smallest_subnormal)
            elements = [1, -0.0, np.nan, np.inf, -np.inf, least, -least, float(limits.max), -np.nan, 0]
        case _:
            raise UsageError(f"values={values!r}: one of exact, full, tiny, limits, cancelling, random, wide, special, "
                             "symbols")
    return np.array(elements, dtype)


def in_turn(ranks: int, length: int, dtype: str, values: str) -> tuple[Array, ...]:
    """Vectors with all elements of a kind in turn: first the same on all ranks, then shifted from rank to rank."""
    table = alphabet(values, dtype)
    rank, element = np.ogrid[:ranks, :length]
    return tuple(table[(element + rank * (element // len(table) + (len(table) > length))) % len(table)])


def rounding_of(dtype: str) -> float:
    """The greatest relative error of one rounding.

    >>> rounding_of("bfloat16") == 2.0**-8
    True
    """
    return float(ml_dtypes.finfo(dtype).eps) / 2  # type: ignore[no-untyped-call]


def same_numbers(have: Array, due: Array, *, payloads: bool) -> bool:
    """Whether two arrays have the same bytes; unless `payloads` count, NaN equals NaN.

    >>> nan, other = np.array([np.nan]), np.array([-np.nan])
    >>> same_numbers(nan, other, payloads=False), same_numbers(nan, other, payloads=True)
    (True, False)
    >>> same_numbers(np.array([0.0]), np.array([-0.0]), payloads=False)
    False
    """
    if have.dtype != due.dtype or have.shape != due.shape:
        return False
    if payloads or have.dtype.name not in FLOATS:
        return have.tobytes() == due.tobytes()
    return with_one_nan(have.copy()).tobytes() == with_one_nan(due.copy()).tobytes()
