"""The messages of one rank in a collective: recorded from a run of the collective on this rank alone.

A run must send the same. This is no formula: it says that a collective does the same within a stage as by itself. That
its messages are the right ones is proved on symbols, and counted in the tests of collectives.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from zerosim.collectives import Algorithm
from zerosim.core.comm import SendsFirst
from zerosim.core.errors import UsageError
from zerosim.core.extents import Extent
from zerosim.core.sharding import split
from zerosim.observe.traffic import Count

MOST_RANKS = 4096
"""The most ranks on which a user's collective is recorded."""


@dataclass(frozen=True)
class Flow:
    """The bytes that a rank sends to each other rank, its messages by their bytes, and the bytes that it receives."""

    to: Mapping[int, int]
    messages: Mapping[int, int]
    received_bytes: int

    def count(self, away: Callable[[int], bool]) -> Count:
        """The traffic of one call; the bytes to ranks for which `away` holds leave the host."""
        return Count(1, sum(self.to.values()), sum(self.messages.values()), self.received_bytes,
                     sum(sent for to, sent in self.to.items() if away(to)), max(self.messages, default=0))

    def times(self, length: int) -> "Flow":
        """The flow of messages that are `length` times as long."""
        return Flow({to: length * sent for to, sent in self.to.items()},
                    {length * sent: often for sent, often in self.messages.items()}, length * self.received_bytes)


class LoneRank(SendsFirst):
    """A rank of a communicator by itself: its messages are counted, and nothing arrives."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.to, self.messages = Counter[int](), Counter[int]()
        self.received_bytes = 0

    def send(self, outgoing: Any, *, to: int) -> None:
        self.to[to] += outgoing.nbytes
        self.messages[outgoing.nbytes] += 1

    def recv(self, *, into: Any, source: int, reduce: Any = None) -> None:
        self.received_bytes += into.nbytes


def flow(collective: Callable[..., None], size: int, rank: int, length: int, itemsize: int, root: int | None) -> Flow:
    """The flow of `rank` among `size` ranks, for chunks of `length` elements or, from a `root`, for one such vector.

    The messages of a shipped collective are chunks, so it is recorded once for chunks of one byte; a user's may cut
    chunks, and is recorded for each length. `UsageError` for more ranks than are recorded.

    >>> from zerosim.collectives import ring
    >>> flow(ring.all_gather, 4, 0, length=10, itemsize=4, root=None)
    Flow(to={1: 120}, messages={40: 3}, received_bytes=120)
    """
    row = getattr(collective, "__self__", None)
    if isinstance(row, Algorithm):
        row = row.at(size, length * itemsize * (size if root is None else 1))
        if row.users:
            return of_users(row, size, rank, length, itemsize, root)
        collective = row.function
    return recorded(collective, size, rank, 1, 1, root).times(length * itemsize)


def of_users(row: Algorithm, size: int, rank: int, length: int, itemsize: int, root: int | None) -> Flow:
    if size > MOST_RANKS:
        raise UsageError(f"{row.name} is recorded on at most {MOST_RANKS} ranks, and {size} are asked for")
    return recorded(row.function, size, rank, length, itemsize, root, numbers=True)


@lru_cache(maxsize=4096)
def recorded(
    collective: Callable[..., None], size: int, rank: int, length: int, itemsize: int, root: int | None,
    *, numbers: bool = False,
) -> Flow:
    """The messages of one call, on zeros or on shapes alone."""
    comm, dtype, payload = LoneRank(rank, size), np.dtype(f"u{itemsize}"), np.zeros if numbers else Extent
    with np.errstate(all="ignore"):
        if root is None:
            collective(comm, split(payload(size * length, dtype), size))
        else:
            collective(comm, payload(length, dtype), root)
    return Flow(dict(comm.to), dict(comm.messages), comm.received_bytes)


def with_messages(algorithm: Algorithm) -> Algorithm:
    """A user's algorithm with its recorded messages; any other algorithm unchanged.

    Recorded messages have the right number of chunks but not their numbers: chunks are equally long here.
    """
    if not algorithm.users:
        return algorithm
    rooted = algorithm.collective == "broadcast"

    def volume(rank: int, size: int, root: int) -> list[Sequence[int]]:
        length, asked = (size, root) if rooted else (1, None)
        sent = of_users(algorithm, size, rank, length, 1, asked).messages
        return [range(chunks) for chunks, often in sent.items() for _ in range(often)]

    def steps(size: int) -> int:
        return max(len(volume(rank, size, 0)) for rank in range(size))

    return replace(algorithm, volume=volume, steps=steps)
