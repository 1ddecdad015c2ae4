"""Orders of addition, declared: each a function that adds what the ranks bring, in that order.

Floating-point addition commutes but does not associate, so the order is part of every result. The
functions here add anything that has a `+` (arrays, numbers, symbols): the reference sums with them,
a proof compares with them, and a report prints them. They send nothing and know of no world.

    contributions   what each rank brings of one chunk, in rank order
    chunk           the number of that chunk, which only some orders ask for
"""

from collections.abc import Callable, Sequence
from typing import Any

Sum = Callable[[Sequence[Any], int], Any]


def ring(contributions: Sequence[Any], chunk: int) -> Any:
    """((g[c+1] + g[c+2]) + …) + g[c], indices modulo the number of ranks: the owner comes last.

    >>> ring(["a", "b", "c"], 0)
    'bca'
    """
    size = len(contributions)
    total = contributions[(chunk + 1) % size]
    for distance in range(2, size + 1):
        total = total + contributions[(chunk + distance) % size]
    return total


def rank_order(contributions: Sequence[Any], chunk: int) -> Any:
    """((g[0] + g[1]) + g[2]) + …: left to right.

    >>> rank_order(["a", "b", "c"], 0)
    'abc'
    """
    total = contributions[0]
    for contribution in contributions[1:]:
        total = total + contribution
    return total


def near_tree(contributions: Sequence[Any], chunk: int) -> Any:
    """((g[0] + g[1]) + (g[2] + g[3])) + …: the aligned binary tree, neighbours first.

    Every run of ranks is cut at the largest power of two below its length.

    >>> from zerosim.terms import Term
    >>> near_tree([Term(rank) for rank in range(6)], 0)
    (((g0 + g1) + (g2 + g3)) + (g4 + g5))
    """
    if len(contributions) == 1:
        return contributions[0]
    middle = 1 << ((len(contributions) - 1).bit_length() - 1)
    return near_tree(contributions[:middle], chunk) + near_tree(contributions[middle:], chunk)


def folded_tree(contributions: Sequence[Any], chunk: int) -> Any:
    """The near tree over a power of two of sums: the first pairs of ranks are added beforehand.

    There are as many such pairs as there are ranks beyond the largest power of two.

    >>> from zerosim.terms import Term
    >>> folded_tree([Term(rank) for rank in range(5)], 0)
    (((g0 + g1) + g2) + (g3 + g4))
    """
    size = len(contributions)
    extra = size - (1 << (size.bit_length() - 1))
    pairs = [contributions[2 * pair] + contributions[2 * pair + 1] for pair in range(extra)]
    return near_tree([*pairs, *contributions[2 * extra :]], chunk)


def far_tree(contributions: Sequence[Any], chunk: int) -> Any:
    """T(c, 1), where T(r, d) = T(r ^ d, 2d) + T(r, 2d) and T(r, size) = g[r]: halves first.

    The number of ranks is a power of two.

    >>> from zerosim.terms import Term
    >>> far_tree([Term(rank) for rank in range(4)], 0)
    ((g3 + g1) + (g2 + g0))
    """

    def held(rank: int, distance: int) -> Any:
        if distance == len(contributions):
            return contributions[rank]
        return held(rank ^ distance, 2 * distance) + held(rank, 2 * distance)

    return held(chunk, 1)


ORDERS: dict[str, Sum] = {"ring": ring, "rank": rank_order, "tree": near_tree}
