"""The recorder: writes down every message of a local world, and what each rank then holds.

    round     when a message arrives, if sending and receiving one message each takes a rank one round
    element   one place of a rank's vector
    holds     the whole vector of a rank, after a round

The schedule that comes out is data: tables, drawings and proofs are made from it.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from zerosim.comm import Communicator, Payload, Reduction
from zerosim.instruments.observed import Observed
from zerosim.worlds.local import Sends, StillRunning, spawn


@dataclass(frozen=True)
class Message:
    """One message: what was carried, and what stood at its destination once it had been received or reduced."""

    round: int
    source: int
    to: int
    carried: tuple[Any, ...]
    landed: tuple[Any, ...]
    reduced: bool


@dataclass
class Recording:
    """A recorded run: messages in the order of their arrival, and each rank's vector whenever it changed.

    `failure` is what ended the run early, if anything did.
    """

    size: int
    messages: list[Message] = field(default_factory=list)
    vectors: list[list[tuple[int, tuple[Any, ...]]]] = field(default_factory=list)
    results: list[Any] | None = None
    failure: Exception | None = None

    @property
    def rounds(self) -> int:
        """How many rounds it took."""
        return max((message.round for message in self.messages), default=0)

    def holds(self, rank: int, after: int) -> tuple[Any, ...]:
        """The vector of `rank` after round `after`; 0 is before the first."""
        return next(vector for round_, vector in reversed(self.vectors[rank]) if round_ <= after)


def record(
    program: Callable[[Communicator, Any], Any],
    vectors: Sequence[Any],
    *,
    sends: Sends = "buffered",
    seed: int = 0,
    limit_seconds: float | None = None,
) -> Recording:
    """Run `program(comm, vectors[comm.rank])` on every rank and write down what happens.

    A failure does not raise; it stands in the recording, beside what happened before. Only a program that has not
    ended after `limit_seconds` raises `StillRunning`: its ranks might go on writing.

    >>> from zerosim.collectives import ring
    >>> from zerosim.sharding import split
    >>> from zerosim.payloads.terms import symbols
    >>> recording = record(lambda comm, x: ring.all_reduce(comm, split(x, 2)), [symbols(r, 2) for r in range(2)])
    >>> recording.rounds, recording.holds(0, after=1), recording.holds(0, after=2)
    (2, ((g1 + g0), g0), ((g1 + g0), (g0 + g1)))
    """
    recording = Recording(len(vectors))
    recording.vectors = [[(0, elements(vector))] for vector in vectors]
    posted: Posted = defaultdict(deque)

    def recorded(comm: Communicator) -> Any:
        vector = vectors[comm.rank]
        return program(Observed(comm, Recorder(comm.rank, vector, recording, posted)), vector)

    try:
        recording.results = spawn(recorded, len(vectors), sends=sends, seed=seed, limit_seconds=limit_seconds)
    except StillRunning:
        raise
    except Exception as error:
        recording.failure = error
    return recording


Posted = defaultdict[tuple[int, int], deque[tuple[int, tuple[Any, ...]]]]


class Recorder:
    """One rank's part of a recording: what it sends, what it receives, and what its vector then holds."""

    def __init__(self, rank: int, vector: Any, recording: Recording, posted: Posted) -> None:
        self._rank = rank
        self._vector = vector
        self._recording = recording
        self._posted = posted
        self._round = 0
        self._next_arrival = 1

    def sending(self, outgoing: Payload, to: int) -> None:
        self._round += 1
        self._next_arrival = self._round
        self._posted[self._rank, to].append((self._round, elements(outgoing)))

    def sent(self, outgoing: Payload, to: int) -> None:
        self._next_arrival = self._round + 1

    def received(self, into: Payload, source: int, reduce: Reduction | None) -> None:
        sent, carried = self._posted[source, self._rank].popleft()
        self._round = max(self._next_arrival, sent)
        self._next_arrival = self._round + 1
        self._recording.messages.append(
            Message(self._round, source, self._rank, carried, elements(into), reduce is not None)
        )
        self._recording.vectors[self._rank].append((self._round, elements(self._vector)))


def elements(payload: Payload) -> tuple[Any, ...]:
    """What a payload holds, element by element."""
    return tuple(payload.reshape(-1).tolist())
