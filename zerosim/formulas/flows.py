"""The messages of each rank in a collective that a scenario names: recorded from a run of it alone, on zeros.

A run must send the same. This is no formula: it says that the collective does the same within a stage as alone.
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
"""The most ranks on which a collective is recorded."""


@dataclass(frozen=True)
class Flow:
    """The receiver and length of each message of a rank, and the number of elements that it receives in total."""

    sent: tuple[tuple[int, int], ...]
    received: int


@cache
def flows(algorithm: Algorithm, size: int, count: int, root: int = 0) -> tuple[Flow, ...]:
    """The messages of every rank for a vector of `count` elements; `UsageError` for more ranks than are recorded."""
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
    """A user's algorithm with its recorded messages; any other algorithm unchanged.

    Recorded messages have the right number of chunks but not their numbers: chunks are equally long here.
    """
    if not algorithm.users:
        return algorithm

    def volume(rank: int, size: int, root: int) -> list[Sequence[int]]:
        return [range(length) for _, length in flows(algorithm, size, size, root)[rank].sent]

    def steps(size: int) -> int:
        return max(len(flow.sent) for flow in flows(algorithm, size, size))

    return replace(algorithm, volume=volume, steps=steps)
