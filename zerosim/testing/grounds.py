"""The worlds in which examples run: the local world, or all ranks of the MPI world at once.

Hypothesis draws on rank 0 alone, which broadcasts the example and gathers the observations of all ranks. Both use the
given communicator; the function under examination has a channel of its own, with a short timeout, so messages that a
faulty function leaves behind reach no other code.
"""

from collections.abc import Callable
from functools import cache

import numpy as np

from zerosim.errors import CollectiveError, Deadlock
from zerosim.teach.proofs.subject import Subject
from zerosim.testing.example import Example, SeenExample, observe
from zerosim.worlds.local import spawn
from zerosim.worlds.mpi_communicator import MpiCommunicator
from zerosim.worlds.objects import broadcast_object, gather_objects

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
