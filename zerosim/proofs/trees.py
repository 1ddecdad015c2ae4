"""Rooted trees in the two shapes that students write, beside the table's, for the comparison with a wrong one.

Ranks are counted from the root on, so every root has the same tree; the table's keeps the order of the ranks.

    doubling    distances 1, 2, 4, …: in every round each rank that has the vector sends it on
    halving     distances …, 4, 2, 1: as the table's tree for root 0
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from zerosim.core.comm import Communicator

Pairs = list[tuple[int, int]]
"""The sender and the receiver of each message of a broadcast, counted from the root, in order."""


def doubling(size: int) -> Pairs:
    """
    >>> doubling(5)
    [(0, 1), (0, 2), (1, 3), (0, 4)]
    """
    return [(place, place + distance) for distance in distances(size)
            for place in range(min(distance, size - distance))]


def halving(size: int) -> Pairs:
    """
    >>> halving(5)
    [(0, 4), (0, 2), (0, 1), (2, 3)]
    """
    return [(place, place + distance) for distance in reversed(distances(size))
            for place in range(0, size - distance, 2 * distance)]


def distances(size: int) -> list[int]:
    return [1 << number for number in range((size - 1).bit_length())]


def walk(
    shape: Callable[[int], Pairs], step: int, comm: Communicator, vector: Any, root: int, reduce: Any = None
) -> None:
    """The messages of a broadcast, or with step −1 those of a reduce: the same ones backwards."""
    for pair in shape(comm.size)[::step]:
        sender, receiver = ((place + root) % comm.size for place in pair[::step])
        if comm.rank == sender:
            comm.send(vector, to=receiver)
        elif comm.rank == receiver:
            comm.recv(into=vector, source=sender, reduce=reduce)


TREES: dict[str, dict[str, Callable[..., None]]] = {
    "broadcast": {"a tree of distances 1, 2, 4": partial(walk, doubling, 1),
                  "a tree of distances 4, 2, 1": partial(walk, halving, 1)},
    "reduce": {"a tree of distances 1, 2, 4": partial(walk, halving, -1),
               "a tree of distances 4, 2, 1": partial(walk, doubling, -1)},
}
"""The trees by collective and by their names in a diagnosis."""
