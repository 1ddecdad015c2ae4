"""The recorder: it records every message of a local world, and each rank's vector after it.

    round     the arrival of a message, if sending and receiving one message each takes a rank one round
    element   one place of a rank's vector
    stretch   the elements of a rank's vector that an array is a view of; empty for other memory
    holds     the whole vector of a rank, after a round

The resulting schedule is data: tables, drawings and proofs are made from it. Nothing is derived from an
algorithm's description. The table of algorithms counts rounds as steps.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from zerosim.core.comm import Communicator, Payload, Reduction
from zerosim.core.errors import Runaway
from zerosim.observe.observed import Observed
from zerosim.worlds.call_stack import line_in
from zerosim.worlds.local import Sends, StillRunning, spawn


@dataclass(frozen=True)
class Message:
    """One message: its contents, and the contents of its destination after it had been received or reduced.

    Until it arrives, its round is that in which it was sent.
    """

    round: int
    source: int
    to: int
    carried: tuple[Any, ...]
    outgoing: range = range(0)
    """The stretch of the sender's vector from which it was sent."""
    line: int = 0
    """The line that sent it in the recorded file; 0 without one. `received_in` is the line that received it."""
    landed: tuple[Any, ...] = ()
    reduced: bool = False
    into: range = range(0)
    """The stretch of the receiver's vector into which it was received."""
    received_in: int = 0


@dataclass(frozen=True)
class Awaited:
    """An unfinished receive: its source, and the number and dtype of its elements."""

    source: int
    count: int
    dtype: Any
    into: range
    line: int = 0


@dataclass
class Recording:
    """A recorded run: messages in the order of their arrival, and each rank's vector after every change.

    `failure` is the exception that ended the run early, or None, and `awaited`, by rank, the unfinished receives.
    """

    size: int
    messages: list[Message] = field(default_factory=list)
    vectors: list[list[tuple[int, tuple[Any, ...]]]] = field(default_factory=list)
    results: list[Any] | None = None
    failure: Exception | None = None
    awaited: dict[int, Awaited] = field(default_factory=dict)
    under_way: defaultdict[tuple[int, int], deque[Message]] = field(default_factory=lambda: defaultdict(deque))
    """The messages that have been sent and not received, by source and receiver."""

    @property
    def rounds(self) -> int:
        """The number of rounds."""
        return max((message.round for message in self.messages), default=0)

    @property
    def unreceived(self) -> list[Message]:
        """The messages that were never received."""
        return [message for messages in self.under_way.values() for message in messages]

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
    file: str = "",
) -> Recording:
    """Run `program(comm, vectors[comm.rank])` on every rank and record its messages, with their lines in `file`.

    A failure does not raise; the recording contains it: `StillRunning` for a program that has not ended after
    `limit_seconds`, `Runaway` for one that has sent more messages than any terminating program needs.

    >>> from zerosim.collectives import ring
    >>> from zerosim.core.sharding import split
    >>> from zerosim.core.terms import symbols
    >>> recording = record(lambda comm, x: ring.all_reduce(comm, split(x, 2)), [symbols(r, 2) for r in range(2)])
    >>> recording.rounds, recording.holds(0, after=1), recording.holds(0, after=2)
    (2, ((g1 + g0), g0), ((g1 + g0), (g0 + g1)))
    """
    recording = Recording(len(vectors))
    recording.vectors = [[(0, elements(vector))] for vector in vectors]

    def recorded(comm: Communicator) -> Any:
        vector = vectors[comm.rank]
        return program(Observed(comm, MessageRecorder(comm.rank, vector, recording, file)), vector)

    try:
        recording.results = spawn(recorded, len(vectors), sends=sends, seed=seed, limit_seconds=limit_seconds)
    except StillRunning as error:    # a copy so far: a rank that still runs may continue to write
        vectors_so_far = [list(changes) for changes in recording.vectors]
        arrived = sum(len(changes) - 1 for changes in vectors_so_far)
        return Recording(recording.size, recording.messages[:arrived], vectors_so_far, failure=error)
    except Exception as error:
        recording.failure = error
    return recording


@dataclass(eq=False)
class MessageRecorder:
    """One rank's part of a recording: its messages, and its vector after each."""

    rank: int
    vector: Any
    recording: Recording
    file: str
    _round: int = 0
    _sent: int = 0
    _next_arrival: int = 1
    _begun: int = 0

    def sending(self, outgoing: Payload, to: int) -> None:
        if not hasattr(outgoing, "reshape"):
            return  # the world refuses it next
        self._sent += 1
        size, count = self.recording.size, np.size(self.vector)
        if self._sent > 200 + 20 * size**2 + 4 * size * count:    # twice those of a ring for each element
            raise Runaway(f"rank {self.rank} has sent {self._sent - 1:,} messages, and goes on")
        if not self._begun:
            self._round += 1
            self._next_arrival = self._round
        self._begun += 1
        self.recording.under_way[self.rank, to].append(Message(
            self._round, self.rank, to, elements(outgoing), self.place(outgoing), self._line()))

    def sent(self, outgoing: Payload, to: int) -> None:
        self._begun -= 1
        self._next_arrival = self._round + 1

    def receiving(self, into: Payload, source: int) -> None:
        if isinstance(into, np.ndarray):
            awaited = Awaited(source, into.size, into.dtype, self.place(into), self._line())
            self.recording.awaited[self.rank] = awaited

    def received(self, into: Payload, source: int, reduce: Reduction | None) -> None:
        sent = self.recording.under_way[source, self.rank].popleft()
        self.recording.awaited.pop(self.rank, None)
        self._round = max(self._round, self._next_arrival, sent.round)
        if not self._begun:
            self._next_arrival = self._round + 1
        self.recording.messages.append(replace(
            sent, round=self._round, landed=elements(into), reduced=reduce is not None,
            into=self.place(into), received_in=self._line()))
        self.recording.vectors[self.rank].append((self._round, self.held()))

    def held(self) -> tuple[Any, ...]:
        """What the rank holds now."""
        return elements(self.vector)

    def place(self, payload: Payload) -> range:
        """The places of `payload` in what the rank holds."""
        return stretch(payload, self.vector)

    def _line(self) -> int:
        return line_in(self.file) if self.file else 0


def stretch(payload: Payload, vector: Any) -> range:
    """The elements of `vector` that `payload` is a view of.

    >>> vector = np.arange(6)
    >>> stretch(vector[2:4], vector), stretch(vector[2:4].copy(), vector)
    (range(2, 4), range(0, 0))
    """
    if not (isinstance(payload, np.ndarray) and isinstance(vector, np.ndarray) and vector.size):
        return range(0)
    start = (payload.ctypes.data - vector.ctypes.data) // vector.itemsize
    return range(start, start + payload.size) if 0 <= start < vector.size and payload.size else range(0)


def elements(payload: Payload) -> tuple[Any, ...]:
    """The elements of a payload."""
    return tuple(payload.reshape(-1).tolist())
