"""Rooted trees in the two shapes that students write, beside the table's, for the comparison with a wrong one.

Ranks are counted from the root on, so every root has the same tree; the table's keeps the order of the ranks.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from zerosim.core.comm import Communicator


def pairs(size: int, falling: bool) -> list[tuple[int, int]]:
    """The sender and the receiver of each message of a broadcast, counted from the root, in order.

    With distances 1, 2, 4, … each rank that has the vector sends it on in every round; if they are `falling`, the tree
    is the table's for root 0.

    >>> pairs(5, falling=False), pairs(5, falling=True)
    ([(0, 1), (0, 2), (1, 3), (0, 4)], [(0, 4), (0, 2), (0, 1), (2, 3)])
    """
    distances = [1 << number for number in range((size - 1).bit_length())]
    return [(place, place + distance) for distance in (distances[::-1] if falling else distances)
            for place in range(0, size - distance, 2 * distance if falling else 1) if falling or place < distance]


def tree(
    falling: bool, step: int, comm: Communicator, vector: Any, root: int, reduce: Any = None
) -> None:
    """The messages of a broadcast, or with step −1 those of a reduce: the same ones backwards."""
    for pair in pairs(comm.size, falling)[::step]:
        sender, receiver = ((place + root) % comm.size for place in pair[::step])
        if comm.rank == sender:
            comm.send(vector, to=receiver)
        elif comm.rank == receiver:
            comm.recv(into=vector, source=sender, reduce=reduce)


TREES: dict[str, dict[str, Callable[..., None]]] = {
    collective: {f"a tree of distances {words}": partial(tree, falling == (step == 1), step)
                 for words, falling in (("1, 2, 4", False), ("4, 2, 1", True))}
    for collective, step in (("broadcast", 1), ("reduce", -1))}
"""The trees by collective and by their names in a diagnosis."""
