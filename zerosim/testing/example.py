"""One example of a collective and its run, in the local world or on all ranks of the MPI world at once.

Hypothesis draws on rank 0 alone, which broadcasts the example and gathers the observations of all ranks. Both use the
given communicator; the function under examination has a channel of its own, with a short timeout, so messages that a
faulty function leaves behind reach no other code.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from zerosim.allocation import Array
from zerosim.comm import Communicator, Reduction
from zerosim.errors import CollectiveError, Deadlock
from zerosim.instruments.observed import Observed
from zerosim.instruments.traffic import Traffic
from zerosim.sharding import Chunks
from zerosim.teach.proofs.subject import Subject
from zerosim.worlds.local import Sends, spawn
from zerosim.worlds.mpi_communicator import MpiCommunicator
from zerosim.worlds.objects import broadcast_object, gather_objects


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


PATIENCE_SECONDS = 2.0
"""The seconds that a rank waits for a message of the examined function before it is a deadlock."""

Ground = Callable[[Subject, Example], list[SeenExample]]


class LawBroken(AssertionError):
    """A law does not hold: its name, the ranks, and for each its input, its result, and the expected result.

    `example` is the smallest that was found, None on ranks other than 0.
    """

    def __init__(self, message: str, example: Example | None = None) -> None:
        super().__init__(message)
        self.example = example


class Failed(Exception):
    """The examined function raised an exception or deadlocked."""


class Stranded(BaseException):
    """A rank failed under MPI: messages may be left over, so no further example can be tried."""

    def __init__(self, broken: LawBroken) -> None:
        super().__init__(str(broken))
        self.broken = broken


def local(subject: Subject, example: Example) -> list[SeenExample]:
    """The observations of each rank in the local world."""
    try:
        with np.errstate(all="ignore"):
            return spawn(
                lambda comm: observe(comm, subject, example), example.size, seed=example.seed, sends=example.sends
            )
    except Exception as error:
        raise Failed(failure_line(error)) from error


def failure_line(error: Exception) -> str:
    """The message of an exception, and the rank that raised it, in one line."""
    if isinstance(error, Deadlock | CollectiveError):
        return str(error)
    where = " ".join(getattr(error, "__notes__", []))
    return f"{type(error).__name__}: {error} {where}".strip()


@cache
def channel(comm: MpiCommunicator) -> MpiCommunicator:
    """The channel that examined functions use; all ranks make it together."""
    return comm.channel(PATIENCE_SECONDS)


class Launched:
    """All ranks that the launcher started: rank 0 leads, the others follow."""

    def __init__(self, comm: MpiCommunicator) -> None:
        self.comm = comm
        self.channel = channel(comm)

    def __call__(self, subject: Subject, example: Example) -> list[SeenExample]:
        """The observations of each rank; only rank 0 calls this."""
        broadcast_object(self.comm, example)
        outcomes = gather_objects(self.comm, self._attempt(subject, example))
        assert outcomes is not None
        failures = [outcome for outcome in outcomes if isinstance(outcome, Failed)]
        if failures:
            raise next((failure for failure in failures if "waited" not in str(failure)), failures[0])
        lost = sum(seen.messages - seen.received for seen in outcomes)
        if lost:
            raise Failed(f"{lost} message(s) were sent that no rank received: every send needs its receive")
        return outcomes

    def lead_or_follow(self, subject: Subject, examine: Callable[[], None]) -> None:
        """Run `examine()` on rank 0, which the others follow. Its exception ends all of them alike."""
        try:
            if self.comm.rank == 0:
                self._lead(examine)
            else:
                self._follow(subject)
        except BaseException:
            channel.cache_clear()
            raise

    def _lead(self, examine: Callable[[], None]) -> None:
        try:
            examine()
        except BaseException as error:
            broadcast_object(self.comm, f"{error}")
            raise
        broadcast_object(self.comm, None)

    def _follow(self, subject: Subject) -> None:
        while isinstance(said := broadcast_object(self.comm, None), Example):
            gather_objects(self.comm, self._attempt(subject, said))
        if said is not None:
            raise LawBroken(said)

    def _attempt(self, subject: Subject, example: Example) -> SeenExample | Failed:
        try:
            with np.errstate(all="ignore"):
                return observe(self.channel, subject, example)
        except Exception as error:
            where = "" if isinstance(error, Deadlock) else f" (raised on rank {self.comm.rank} of {self.comm.size})"
            return Failed(failure_line(error) + where)
