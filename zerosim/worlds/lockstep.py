"""The lockstep world: all ranks at once, for code in which every rank does the same. It carries no messages.

    rank       a vector: the numbers of all ranks
    extent     stands for an array of every rank, cut by vectors of bounds (see `core/extents.py`)

Code runs once for any number of ranks, so a step on 16,384 ranks costs little more to plan than one on 64. Code that
branches on a condition of some ranks only, as for a root, or cuts pieces of several lengths, raises `Unlike`. A plan
gives collectives a price where they are called, so none of them sends anything here.
"""

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from zerosim.core.comm import Exchange, ExchangesTogether, Payload, Reduction
from zerosim.core.errors import Unlike


class RankVector(np.ndarray[Any, Any]):
    """A number for every rank. It converts to a bool or an index only if all ranks have the same."""

    def __bool__(self) -> bool:
        if self.size and (self == self.flat[0]).view(np.ndarray).all():
            return bool(self.flat[0])
        raise Unlike("ranks would do different things: the code branches on a condition that holds on some ranks only")

    def __index__(self) -> int:
        if self.size and (self == self.flat[0]).view(np.ndarray).all():
            return int(self.flat[0])
        raise Unlike("ranks would do different things: the code needs one number where each rank has its own")


def ranks(count: int) -> RankVector:
    """The numbers 0 … count − 1, as a vector.

    >>> bool(ranks(4) >= 0), (ranks(4) + 1) % 4
    (True, RankVector([1, 2, 3, 0]))
    """
    return np.arange(count).view(RankVector)


class LockstepCommunicator(ExchangesTogether):
    """All ranks of a lockstep world."""

    def __init__(self, size: int) -> None:
        self.rank: Any = ranks(size)
        self.size = size

    def exchange_all(self, exchanges: Sequence[Exchange]) -> NoReturn:
        raise Unlike("the lockstep world carries no messages: run this code in the local world")

    def send(self, outgoing: Payload, *, to: Any) -> NoReturn:
        self.exchange_all([])

    def recv(self, *, into: Payload, source: Any, reduce: Reduction | None = None) -> NoReturn:
        self.exchange_all([])
