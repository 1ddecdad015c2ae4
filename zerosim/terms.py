"""Symbols that are added instead of numbers: a `+` that builds a tree, so that a sum remembers how it was made.

An object array of terms travels through any collective in the local world. What a chunk then holds says which
contributions went into it, how often, and in which order, for every value the numbers could have had.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Term:
    """What rank `rank` brought, or, as `Sum`, what two terms give when added in this order.

    >>> (Term(1) + Term(2)) + Term(0)
    ((g1 + g2) + g0)
    """

    rank: int

    def __add__(self, other: "Term | Sum") -> "Sum":
        return Sum(self, other)

    def __repr__(self) -> str:
        return f"g{self.rank}"


@dataclass(frozen=True, slots=True)
class Sum:
    """`left + right`, in this order."""

    left: "Term | Sum"
    right: "Term | Sum"

    def __add__(self, other: "Term | Sum") -> "Sum":
        return Sum(self, other)

    def __repr__(self) -> str:
        return f"({self.left} + {self.right})"


def leaves(term: Term | Sum) -> Iterator[Term]:
    """The single contributions in `term`, left to right.

    >>> list(leaves(Term(1) + Term(0)))
    [g1, g0]
    """
    if isinstance(term, Sum):
        yield from leaves(term.left)
        yield from leaves(term.right)
    else:
        yield term


def missing_and_doubled(term: Term | Sum, size: int) -> tuple[list[int], list[int]]:
    """The ranks whose contribution is not in `term`, and those whose contribution is there more than once.

    >>> missing_and_doubled(Term(1) + Term(1), size=2)
    ([0], [1])
    """
    found = Counter(leaf.rank for leaf in leaves(term))
    return [r for r in range(size) if not found[r]], [r for r in range(size) if found[r] > 1]


def symbols(rank: int, count: int) -> npt.NDArray[Any]:
    """An object array of `count` elements, each the contribution of `rank`."""
    terms = np.empty(count, dtype=object)
    terms[:] = [Term(rank)] * count
    return terms
