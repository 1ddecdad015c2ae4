"""One example of a collective: what each rank brings, and what was seen when it had run."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from zerosim.allocation import Array
from zerosim.comm import Communicator, Payload, Reduction
from zerosim.sharding import Chunks
from zerosim.subject import Subject
from zerosim.worlds.local import Sends


@dataclass(frozen=True, eq=False)
class Example:
    """A flat vector for each rank, of one length and dtype, and how the collective is to be called.

    `seed` fixes the order in which the ranks of the local world take turns, `sends` whether a send there waits.
    """

    vectors: tuple[Array, ...]
    root: int = 0
    reduce: Reduction = np.add
    seed: int = 0
    sends: Sends = "buffered"

    @property
    def size(self) -> int:
        return len(self.vectors)

    @property
    def count(self) -> int:
        """The elements in each vector."""
        return len(self.vectors[0])

    def but(self, vectors: Sequence[Array]) -> "Example":
        """The same with other vectors."""
        return replace(self, vectors=tuple(vectors))


@dataclass(frozen=True)
class Seen:
    """What one rank held in the end, and the messages it sent and received; `result` is None where none is due.

    `given` is the argument before and after the call, where the call may not change it.
    """

    result: Any
    sent_bytes: int
    messages: int
    received: int
    given: tuple[Array, Array] | None


@dataclass(eq=False)
class Correspondence:
    """A communicator that counts what its rank sends and receives."""

    comm: Communicator
    sent_bytes: int = 0
    sent: int = 0
    received: int = 0

    @property
    def rank(self) -> int:
        return self.comm.rank

    @property
    def size(self) -> int:
        return self.comm.size

    def exchange(
        self, outgoing: Payload, *, to: int, into: Payload, source: int, reduce: Reduction | None = None
    ) -> None:
        self.comm.exchange(outgoing, to=to, into=into, source=source, reduce=reduce)
        self._count_sent(outgoing)
        self.received += 1

    def send(self, outgoing: Payload, *, to: int) -> None:
        self.comm.send(outgoing, to=to)
        self._count_sent(outgoing)

    def recv(self, *, into: Payload, source: int, reduce: Reduction | None = None) -> None:
        self.comm.recv(into=into, source=source, reduce=reduce)
        self.received += 1

    def _count_sent(self, outgoing: Payload) -> None:
        self.sent_bytes += outgoing.nbytes
        self.sent += 1


def observe(comm: Communicator, subject: Subject, example: Example) -> Seen:
    """Run `subject` as one rank of `example`, and look at its messages and at its argument."""
    counted = Correspondence(comm)
    given: list[tuple[Array, Array]] = []

    def watched(comm: Communicator, argument: Any, *rest: Any) -> Any:
        before = flat(argument).copy()
        returned = subject.function(comm, argument, *rest)
        given.append((before, flat(argument).copy()))
        return returned

    vector = example.vectors[comm.rank].copy()
    reduction = [example.reduce] if subject.takes_reduction else []
    replace(subject, function=watched)(counted, vector, example.root, *reduction)
    left = subject.kind.left(vector, comm.rank, comm.size, example.root)
    return Seen(
        None if left is None else left.copy(),
        counted.sent_bytes, counted.sent, counted.received,
        given[0] if subject.keeps_argument else None,
    )


def flat(argument: Array | Chunks) -> Array:
    """The array behind what a collective was given."""
    whole: Array = argument.flat if isinstance(argument, Chunks) else argument
    return whole
