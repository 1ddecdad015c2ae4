"""What each rank sends in a collective that a scenario names: recorded from a run of it by itself, on zeros.

A run must send the same. This is no formula: it says that the collective, within a stage, does what it does alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from zerosim.collectives import Algorithm
from zerosim.comm import Communicator
from zerosim.errors import UsageError
from zerosim.sharding import split
from zerosim.worlds.local import spawn

MOST_RANKS = 512
"""On which a collective is recorded."""


@dataclass(frozen=True)
class Flow:
    """To whom a rank sends how many elements, message by message, and how many it receives in all."""

    sent: tuple[tuple[int, int], ...]
    received: int


@cache
def flows(algorithm: Algorithm, size: int, count: int, root: int = 0) -> tuple[Flow, ...]:
    """What every rank sends of a vector of `count` elements; `UsageError` on more ranks than are recorded."""
    if size > MOST_RANKS:
        raise UsageError(f"{algorithm.name} is recorded on at most {MOST_RANKS} ranks, and {size} are asked for")

    def program(comm: Communicator) -> Flow:
        vector, noted = np.zeros(count, np.uint8), Counting(comm)
        if algorithm.collective == "broadcast":
            algorithm.function(noted, vector, root)
        else:
            algorithm.function(noted, split(vector, size))
        return Flow(tuple(noted.sent), noted.received)

    return tuple(spawn(program, size))


class Counting:
    """A communicator that counts the elements of messages."""

    def __init__(self, comm: Communicator) -> None:
        self.rank, self.size, self._comm = comm.rank, comm.size, comm
        self.sent: list[tuple[int, int]] = []
        self.received = 0

    def exchange(self, outgoing: Any, *, to: int, into: Any, source: int, reduce: Any = None) -> None:
        self.sent.append((to, len(outgoing)))
        self.received += len(into)
        self._comm.exchange(outgoing, to=to, into=into, source=source, reduce=reduce)

    def send(self, outgoing: Any, *, to: int) -> None:
        self.sent.append((to, len(outgoing)))
        self._comm.send(outgoing, to=to)

    def recv(self, *, into: Any, source: int, reduce: Any = None) -> None:
        self.received += len(into)
        self._comm.recv(into=into, source=source, reduce=reduce)


def recorded(algorithm: Algorithm) -> Algorithm:
    """A user's algorithm with what it was recorded to send; any other as it is.

    Of equally long chunks it does not matter which a message has, only how many.
    """
    if not algorithm.users:
        return algorithm

    def volume(rank: int, size: int, root: int) -> list[Sequence[int]]:
        return [range(length) for _, length in flows(algorithm, size, size, root)[rank].sent]

    def steps(size: int) -> int:
        return max(len(flow.sent) for flow in flows(algorithm, size, size))

    return replace(algorithm, volume=volume, steps=steps)
