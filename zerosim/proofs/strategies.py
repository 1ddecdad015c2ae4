"""Hypothesis strategies for all arguments of collectives; they shrink to few ranks and short vectors.

Values are of the kinds of `values.py`, or "symbols": terms that remember how they were added, for the local world.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from zerosim.core.comm import Reduction
from zerosim.core.terms import symbols
from zerosim.proofs.example import Example
from zerosim.proofs.values import DTYPES, FLOATS, ONE_SUM, alphabet

__all__ = [
    "FLOATS", "ONE_SUM", "ARITHMETIC", "BYTES", "REDUCTIONS", "LONGEST", "rank_counts", "lengths", "dtypes", "roots",
    "reductions", "worlds", "vectors", "examples", "alphabet"]

ARITHMETIC = ("exact", "cancelling", "random", "wide")
BYTES = ("exact", "random", "special")
REDUCTIONS = (np.add, np.maximum, np.minimum)
FEW_RANKS, MOST_DRAWN_RANKS = 8, 17
LONGEST = 2003
"""The most elements of a vector of numbers: buffers and pieces of a collective are longer than a few elements."""
DRAWN = 61
"""Choices drawn for a world's vectors; larger worlds repeat them with a period that no chunk has."""


def rank_counts(most: int = MOST_DRAWN_RANKS) -> SearchStrategy[int]:
    """The number of ranks: 1 to `most`, mostly at most 8."""
    few = st.integers(1, min(most, FEW_RANKS))
    return st.one_of(few, few, few, st.integers(1, most)) if most > FEW_RANKS else few


def lengths(ranks: int, *, even: bool = False, most: int = 0) -> SearchStrategy[int]:
    """The length of a vector: 0, fewer than ranks, multiples, and others; if `even`, multiples alone.

    A quarter of the lengths are drawn up to `most`, if it is given.
    """
    short = st.integers(0, 2) if even else st.integers(0, 2 * ranks + 1)
    drawn = st.one_of(short, short, short, st.integers(0, most // ranks if even else most)) if most else short
    return drawn.map(lambda multiple: multiple * ranks) if even else drawn


def dtypes(values: str = "exact") -> SearchStrategy[str]:
    """The name of a dtype that can hold these values."""
    return st.sampled_from({"symbols": ("object",), **DTYPES}.get(values, FLOATS))


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
    kind = draw(st.sampled_from(values))
    length = draw(lengths(size, even=even, most=0 if kind == "symbols" else LONGEST))
    dtype = draw(dtypes(kind))
    root = draw(roots(size)) if rooted else 0
    reduce = np.add if reduction is None else draw(reduction)
    seed = draw(st.integers(0, 99))
    return Example(tuple(draw(vectors(size, length, dtype, kind))), root, reduce, seed)
