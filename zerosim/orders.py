"""Orders of addition, declared: each a function that adds what the ranks bring, in that order and no other.

Floating-point addition commutes but does not associate, so the order is part of every result. The functions here add
anything that has a `+` (arrays, numbers, symbols): the reference sums with them, a proof compares with them, and a
report prints them. They send nothing and know of no world.

    contributions   what each rank brings of one chunk, in rank order
    chunk           the number of that chunk
"""

from collections.abc import Callable, Sequence
from typing import Any

Sum = Callable[[Sequence[Any], int], Any]


def ring(contributions: Sequence[Any], chunk: int) -> Any:
    """((g[c+1] + g[c+2]) + …) + g[c], indices modulo the number of ranks: once around, the owner last.

    >>> ring(["a", "b", "c"], 0)
    'bca'
    """
    size = len(contributions)
    total = contributions[(chunk + 1) % size]
    for distance in range(2, size + 1):
        total = total + contributions[(chunk + distance) % size]
    return total


ORDERS: dict[str, Sum] = {"ring": ring}
