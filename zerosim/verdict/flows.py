"""The messages of one rank in a collective: how many, and how long, by the closed form of its algorithm.

A run must send the same. The closed forms stand in `collectives/volume.py` and are derived from no code, so a shipped
collective that sends a chunk twice fails every run. A user's collective has no closed form: its messages are recorded
from a run of it on this rank alone, which only says that it does the same within a stage as by itself. Their sum over
all ranks is therefore held to the declared `chunks_sent`, and to the least that any algorithm sends (`disproved`).

Destinations, and so the bytes that leave a host, and the bytes received are recorded for all: every byte received is
one that another rank's closed form sends.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import isclose
from typing import Any, NamedTuple

import numpy as np

from zerosim.collectives import Algorithm, algorithm_of
from zerosim.collectives.kinds import COLLECTIVE_KINDS
from zerosim.core.comm import SendsFirst
from zerosim.core.errors import UsageError
from zerosim.core.extents import Extent
from zerosim.core.sharding import split
from zerosim.observe.traffic import Count

MOST_RECORDED_RANKS = 4096
"""The most ranks on which a user's collective is recorded."""


@dataclass(frozen=True)
class Flow:
    """The messages of a rank by their bytes; and as recorded, the bytes to each other rank and the bytes received."""

    to: Mapping[int, int]
    messages: Mapping[int, int]
    received_bytes: int

    @property
    def sent_bytes(self) -> int:
        return sum(length * often for length, often in self.messages.items())

    def count(self, away: Callable[[int], bool]) -> Count:
        """The traffic of one call; the bytes to ranks for which `away` holds leave the host."""
        return Count(1, self.sent_bytes, sum(self.messages.values()), self.received_bytes,
                     sum(sent for to, sent in self.to.items() if away(to)), max(self.messages, default=0))

    def times(self, length: int) -> "Flow":
        """The flow of messages that are `length` times as long."""
        return Flow({to: length * sent for to, sent in self.to.items()},
                    {length * sent: often for sent, often in self.messages.items()}, length * self.received_bytes)


class Transfer(NamedTuple):
    """A message to a rank."""

    to: int
    bytes: int


class ReceiveFrom(NamedTuple):
    """A wait for the next message from a rank."""

    source: int
    bytes: int = 0


class LoneRank(SendsFirst):
    """A rank of a communicator by itself: its sends and receives are recorded in order, and nothing arrives."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.program: list[Transfer | ReceiveFrom] = []

    def send(self, outgoing: Any, *, to: int) -> None:
        self.program.append(Transfer(to, outgoing.nbytes))

    def recv(self, *, into: Any, source: int, reduce: Any = None) -> None:
        self.program.append(ReceiveFrom(source, into.nbytes))

    @property
    def flow(self) -> Flow:
        """Its messages so far."""
        to, messages = Counter[int](), Counter[int]()
        for sent in self.program:
            if isinstance(sent, Transfer):
                to[sent.to] += sent.bytes
                messages[sent.bytes] += 1
        return Flow(to, messages, sum(came.bytes for came in self.program if isinstance(came, ReceiveFrom)))


def flow(collective: Callable[..., None], size: int, rank: int, length: int, itemsize: int, root: int | None) -> Flow:
    """The flow of `rank` among `size` ranks, for chunks of `length` elements or, from a `root`, for one such vector.

    A user's collective may cut chunks, and is recorded for each length. `UsageError` for more ranks than are recorded.

    >>> from zerosim.collectives import ring
    >>> flow(ring.all_gather, 4, 0, length=10, itemsize=4, root=None)
    Flow(to={1: 120}, messages={40: 3}, received_bytes=120)
    """
    row = algorithm_of(collective)
    if not row.users:
        return by_formula(row, size, rank, root).times(length * itemsize)
    if size > MOST_RECORDED_RANKS:
        raise UsageError(f"{row.name} is recorded on at most {MOST_RECORDED_RANKS} ranks, not {size}; give fewer ranks")
    return recorded(row.function, size, rank, length, itemsize, root, numbers=True)


@lru_cache(maxsize=4096)
def by_formula(row: Algorithm, size: int, rank: int, root: int | None) -> Flow:
    """The flow of a shipped collective for chunks of one byte or, from a `root`, for one such vector."""
    alone = recorded(row.function, size, rank, 1, 1, root)
    messages = Counter(len(message) // (1 if root is None else size) for message in row.volume(rank, size, root or 0))
    return replace(alone, messages=messages)


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
    return comm.flow


def disproved(row: Algorithm, size: int, length: int, itemsize: int) -> str | None:
    """What a user's collective sends on `size` ranks and should not, in words: other chunks than it declares, or fewer
    than any algorithm can send.

    >>> from zerosim.collectives.own import declared
    >>> disproved(declared("mine", "all_gather", lambda comm, chunks: None), 3, length=1, itemsize=4)
    'mine sends 0 chunks on 3 ranks, and 6 is the least'
    """
    kind = COLLECTIVE_KINDS[row.collective]
    whole, root = (length * itemsize / size, 0) if kind.rooted else (length * itemsize, None)
    sent = sum(flow(row.carry_out, size, rank, length, itemsize, root).sent_bytes for rank in range(size)) / whole
    if row.chunks_sent is not None and not isclose(sent, (declared := row.chunks_sent(size)) * size, rel_tol=1e-9):
        return (f"{row.name} sends {sent / size:.6g} chunks on average, and chunks_sent declares {declared:.6g} on "
                f"{size} ranks")
    least = kind.least_chunks(size)
    return f"{row.name} sends {sent:.6g} chunks on {size} ranks, and {least} is the least" if sent < least else None


def with_messages(algorithm: Algorithm) -> Algorithm:
    """A user's algorithm with its recorded messages; any other algorithm unchanged.

    Recorded messages have the right number of chunks but not their numbers: chunks are equally long here.
    """
    if not algorithm.users:
        return algorithm
    rooted = algorithm.collective == "broadcast"

    def volume(rank: int, size: int, root: int) -> list[Sequence[int]]:
        length, sender = (size, root) if rooted else (1, None)
        sent = flow(algorithm.carry_out, size, rank, length, 1, sender).messages
        return [range(chunks) for chunks, often in sent.items() for _ in range(often)]

    def steps(size: int) -> int:
        return max(len(volume(rank, size, 0)) for rank in range(size))

    return replace(algorithm, volume=volume, steps=steps)
