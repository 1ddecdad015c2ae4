"""One example of a collective: each rank's vector, the arguments of the call, and what a function does in it."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from zerosim.collectives.kinds import CollectiveKind
from zerosim.core.allocation import Array
from zerosim.core.comm import Communicator, Reduction
from zerosim.core.orders import AddingOrder
from zerosim.core.sharding import Chunks, split
from zerosim.observe.observed import Observed
from zerosim.observe.traffic import Traffic
from zerosim.proofs.subject import Subject
from zerosim.worlds.local import Sends


@dataclass(frozen=True, eq=False)
class Example:
    """A flat vector for each rank, of one length and dtype, and the arguments of the collective.

    `seed` fixes the order in which the ranks of the local world take turns, `sends` whether a send there waits.
    """

    vectors: tuple[Array, ...]
    root: int = 0
    reduce: Reduction = np.add
    seed: int = 0
    sends: Sends = "buffered"
    later_seconds: int = 0
    """By how much the clocks of the call are ahead."""
    calls_again: bool = False
    """Whether the function is called a second time, with zeros, before its first result is examined."""

    @property
    def size(self) -> int:
        return len(self.vectors)

    @property
    def count(self) -> int:
        """The number of elements in each vector."""
        return len(self.vectors[0])

    def but(self, vectors: Sequence[Array]) -> "Example":
        """The example with other vectors."""
        return replace(self, vectors=tuple(vectors))

    def due(self, kind: CollectiveKind, order: AddingOrder | None = None) -> list[Any]:
        """The result due of each rank, None for a rank without one; chunks are added by `order`, or reduced in turn."""
        results = list[Any]()
        for rank, vector in enumerate(map(np.empty_like, self.vectors)):
            for chunk in kind.filled(rank, self.size, self.root):
                contributions = kind.contributions(self.vectors, rank, chunk, self.root)
                split(vector, self.size)[chunk][...] = (
                    order(contributions, chunk) if order else functools.reduce(self.reduce, contributions))
            results.append(kind.left(vector, rank, self.size, self.root))
        return results


@dataclass(frozen=True)
class SeenRun:
    """One rank's result, the messages that it sent and received, and its argument before and after the call.

    `kept` is the returned array before and after a second call, if there was one.
    """

    result: Any
    sent_bytes: int
    messages: int
    received: int
    given: tuple[Array, Array] | None
    kept: tuple[Array, Array] | None = None
    shares: bool = False
    """Whether the returned array shares memory with the argument."""


def seen_run(subject: Subject, comm: Communicator, x: Example) -> SeenRun:
    """One rank's run of `subject` in the example."""
    traffic = Traffic()
    given, kept, shares = list[tuple[Array, Array]](), list[tuple[Array, Array]](), list[bool]()

    def watched(comm: Communicator, argument: Any, *rest: Any) -> Any:
        whole = argument.flat if isinstance(argument, Chunks) else argument
        before = whole.copy()
        returned = subject.function(comm, argument, *rest)
        given.append((before, whole.copy()))
        shares.append(isinstance(returned, np.ndarray) and bool(np.shares_memory(returned, whole)))
        if x.calls_again:
            first = returned.copy() if isinstance(returned, np.ndarray) else returned
            subject.function(comm, np.zeros_like(argument), *rest)
            if first is not None:
                kept.append((first, returned.copy()))
        return returned

    vector = x.vectors[comm.rank].copy()
    replace(subject, function=watched)(Observed(comm, traffic), vector, x.root, *[x.reduce] * subject.takes_reduction)
    left = subject.kind.left(vector, comm.rank, comm.size, x.root)
    return SeenRun(
        None if left is None else left.copy(), traffic.sent_bytes, traffic.messages, traffic.received_messages,
        given[0] if subject.keeps_argument else None, kept[0] if kept else None, shares[0])
