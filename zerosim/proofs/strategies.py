"""Hypothesis strategies for all arguments of collectives; they shrink to few ranks and short vectors.

Values come in kinds, each with a purpose:

    exact        small whole numbers, in dtypes where every order of addition gives the same bits
    cancelling   big, −big, 1 and tiny: almost every order of addition gives different bits
    random       normally distributed, rounded
    special      ±0, ±inf, NaN, subnormals, the largest: bytes that only copying keeps
    symbols      terms that remember how they were added, for the local world
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from zerosim.core.allocation import Array
from zerosim.core.comm import Reduction
from zerosim.core.errors import UsageError
from zerosim.core.terms import symbols
from zerosim.proofs.example import Example

FLOATS = ("float64", "float32", "float16")
WIDE = ("float64", "float32", "int64", "int32")
ARITHMETIC = ("exact", "cancelling", "random")
BYTES = ("exact", "random", "special")
REDUCTIONS = (np.add, np.maximum, np.minimum)
MOST_RANKS = 8
DRAWN = 61
"""Choices drawn for a world's vectors; larger worlds repeat them with a period that no chunk has."""


def rank_counts(most: int = MOST_RANKS) -> SearchStrategy[int]:
    """The number of ranks: 1 to `most`."""
    return st.integers(1, most)


def lengths(ranks: int, *, even: bool = False) -> SearchStrategy[int]:
    """The length of a vector: 0, fewer than ranks, multiples, and others; if `even`, multiples alone."""
    return st.integers(0, 2).map(lambda multiple: multiple * ranks) if even else st.integers(0, 2 * ranks + 1)


def dtypes(values: str = "exact") -> SearchStrategy[str]:
    """The name of a dtype that can hold these values."""
    return st.sampled_from({"exact": WIDE, "symbols": ("object",)}.get(values, FLOATS))


def roots(ranks: int) -> SearchStrategy[int]:
    """Any of the ranks."""
    return st.integers(0, ranks - 1)


def reductions() -> SearchStrategy[Reduction]:
    """np.add, np.maximum or np.minimum."""
    return st.sampled_from(REDUCTIONS)


def worlds() -> SearchStrategy[dict[str, Any]]:
    """The keywords of `zerosim.spawn`: the seed of the ranks' turns, and whether a send waits for its receiver."""
    return st.fixed_dictionaries({"seed": st.integers(0, 99), "sends": st.sampled_from(("buffered", "rendezvous"))})


@st.composite
def vectors(draw: DrawFn, ranks: int, length: int, dtype: npt.DTypeLike = "float64", values: str = "exact") -> Any:
    """A list with a flat vector for each rank, whose elements are of one kind of values.

    The minimal example of exact values is r + 1, r + 11, r + 21, … on rank r.
    """
    if values == "symbols":
        return [symbols(rank, length) for rank in range(ranks)]
    table = alphabet(values, np.dtype(dtype).name)
    choices = np.array(list(draw(st.binary(min_size=DRAWN, max_size=DRAWN))))
    rank, element = np.ogrid[:ranks, :length]
    return list(table[(choices[(24 * rank + element) % DRAWN] + rank + 10 * element) % len(table)])


@st.composite
def examples(
    draw: DrawFn,
    *,
    ranks: SearchStrategy[int] | None = None,
    values: Sequence[str] = ("exact",),
    even: bool = False,
    rooted: bool = False,
    reduction: SearchStrategy[Reduction] | None = None,
) -> Example:
    """A whole example of a collective."""
    size = draw(rank_counts() if ranks is None else ranks)
    length = draw(lengths(size, even=even))
    kind = draw(st.sampled_from(values))
    dtype = draw(dtypes(kind))
    root = draw(roots(size)) if rooted else 0
    reduce = np.add if reduction is None else draw(reduction)
    seed = draw(st.integers(0, 99))
    return Example(tuple(draw(vectors(size, length, dtype, kind))), root, reduce, seed)


@cache
def alphabet(values: str, dtype: str) -> Array:
    """The elements from which vectors of a kind are drawn.

    >>> alphabet("exact", "int32")[[0, 1, 2, -3, -2, -1]]
    array([ 1,  2,  3, -2, -1,  0], dtype=int32)
    """
    match values:
        case "exact":
            elements: Any = [*range(1, 193), *range(-63, 1)]
        case "cancelling":
            big = 2.0 ** (np.finfo(dtype).nmant + 2)
            elements = [1, big, -big, 1 / big, -1 / big, 3, -1, 0]
        case "random":
            elements = np.random.default_rng(0).standard_normal(256)
        case "special":
            limits = np.finfo(dtype)
            least = limits.smallest_subnormal
            elements = [1, -0.0, np.nan, np.inf, -np.inf, least, -least, limits.max, limits.tiny, 0]
        case _:
            raise UsageError(f"values={values!r}: one of exact, cancelling, random, special, symbols")
    return np.array(elements, dtype)
