"""Pairs of ranks: the distance of two partners, the chunks that they exchange, and the order in which they add.

    place      a rank's number among `places` ranks that take part, a power of two
    partner    the rank at the place whose number differs in one bit: `place ^ distance`
    length     how many chunks a step exchanges

Laws:

    addition   with `ranked` both partners compute lower rank + higher rank, hence the same bytes
               (IEEE addition commutes, but which of two NaNs it keeps depends on their order)
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from zerosim.core.comm import Payload, Reduction, Swapped


def near_first(places: int) -> Iterator[int]:
    """The distances 1, 2, 4, … below `places`.

    >>> list(near_first(8)), list(near_first(6))
    ([1, 2, 4], [1, 2, 4])
    """
    distance = 1
    while distance < places:
        yield distance
        distance *= 2


def far_first(places: int) -> Iterator[int]:
    """The distances …, 4, 2, 1 below `places`, farthest first.

    >>> list(far_first(8))
    [4, 2, 1]
    """
    return reversed(list(near_first(places)))


def aligned(chunks: Any, place: int, length: int, places: int) -> Any:
    """The run of `length` places that contains `place` and starts at a multiple of `length`.

    Where there are more chunks than places, each place stands for its share of them.

    >>> aligned(range(8), 6, 4, 8), aligned(range(6), 3, 2, 4)
    (range(4, 8), range(3, 6))
    """
    first = place - place % length
    return chunks[first * len(chunks) // places : (first + length) * len(chunks) // places]


def on_the_right(reduce: Reduction) -> Reduction:
    """`reduce` with the arrived array as its right operand: `into = reduce(into, arrived)`.

    >>> on_the_right(lambda left, right: left + right)("arrived", "into")
    'intoarrived'
    """
    if isinstance(reduce, np.ufunc) and reduce.signature is None:
        return Swapped(reduce)

    def mine_first(arrived: Payload, own: Payload) -> Payload:
        return reduce(own, arrived)

    return mine_first


def ranked(reduce: Reduction, source: int, rank: int) -> Reduction:
    """`reduce` with the operand of the lower of the two ranks on the left."""
    return reduce if source < rank else on_the_right(reduce)


def in_turn(reduce: Reduction, source: int, rank: int, own: Payload) -> Reduction | None:
    """A function that adds the next arrival when the others arrive in rank order and `rank` contributes `own`.

    After it, `into` is the sum of ranks 0 … source, left to right, with `own` at its own place; before the first,
    `into` holds `own`.
    """
    if source == 0 and rank > 1:
        return None
    if source != rank - 1:
        return on_the_right(reduce)
    if source == 0:
        return reduce

    def and_own(arrived: Payload, total: Payload) -> Payload:
        return reduce(reduce(total, arrived), own)

    return and_own
