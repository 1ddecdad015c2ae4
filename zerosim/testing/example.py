"""One example of a collective: the input of each rank, and the observations of its run."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from zerosim.allocation import Array
from zerosim.comm import Communicator, Reduction
from zerosim.instruments.observed import Observed
from zerosim.instruments.traffic import Traffic
from zerosim.sharding import Chunks
from zerosim.teach.proofs.subject import Subject
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


@dataclass(frozen=True)
class SeenExample:
    """One rank's result and the messages that it sent and received; `result` is None if the rank has none.

    `given` is the argument before and after the call, if the call may not change it; `kept` is the returned array
    before and after a second call, if there was one.
    """

    result: Any
    sent_bytes: int
    messages: int
    received: int
    given: tuple[Array, Array] | None
    kept: tuple[Array, Array] | None = None


def observe(comm: Communicator, subject: Subject, example: Example) -> SeenExample:
    """Run `subject` as one rank of `example`, and observe its messages and its argument."""
    traffic = Traffic()
    given: list[tuple[Array, Array]] = []
    kept: list[tuple[Array, Array]] = []

    def watched(comm: Communicator, argument: Any, *rest: Any) -> Any:
        before = whole_array(argument).copy()
        returned = subject.function(comm, argument, *rest)
        given.append((before, whole_array(argument).copy()))
        if example.calls_again:
            once = returned.copy() if isinstance(returned, np.ndarray) else returned
            subject.function(comm, np.zeros_like(argument), *rest)
            if once is not None:
                kept.append((once, returned.copy()))
        return returned

    vector = example.vectors[comm.rank].copy()
    reduction = [example.reduce] if subject.takes_reduction else []
    replace(subject, function=watched)(Observed(comm, traffic), vector, example.root, *reduction)
    left = subject.kind.left(vector, comm.rank, comm.size, example.root)
    return SeenExample(
        None if left is None else left.copy(),
        traffic.sent_bytes, traffic.messages, traffic.received_messages,
        given[0] if subject.keeps_argument else None,
        kept[0] if kept else None,
    )


def whole_array(argument: Array | Chunks) -> Array:
    """The array of a collective's argument."""
    whole: Array = argument.flat if isinstance(argument, Chunks) else argument
    return whole
