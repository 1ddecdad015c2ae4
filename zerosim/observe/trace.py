"""The trace: an instrument that records the activities of a rank over time, in the requested steps only.

    span       an activity of a rank, in one of its lanes, with its beginning and its end
    lane       computation             forward, loss, backward, recompute, update, on the thread of the step
               waiting                 that thread waits for a collective in the second channel
               collectives             calls of collectives, each from its beginning to its end
               communication out, in   the messages within them
               offload                 copies to memory of the host and back
    channel    1 for the step itself; 2 and more for other threads, each with its own channel
    hidden     communication during which its rank computes

In one lane and channel of a rank no two spans overlap, and neither do computation, waiting and the collectives of
channel 1, which are all on one thread; the rest of a step is idle. Times are nanoseconds of a monotonic clock.
Collectives and their messages have lanes of their own so that bytes can be compared with the traffic ledger.

Trade-offs and doubts:

- Hidden communication includes the time that a collective waits for a slower rank.
- A send is drawn until its call returns. The message's further time on the wire is not recorded.
- A trace costs about 5 µs a call, so a step of 1 ms pays far more than the 3% that a step of 35 ms stays below.

The monotonic clock of a host is the same in all of its processes; a host is identified by its boot. If there are
several, rank 0 asks all ranks for the time 32 times, after the row has been trained. The answers were given between
question and arrival, so the middle of the fastest round is right to within half of its duration.
"""

import platform
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from zerosim.core.comm import Communicator, Payload
from zerosim.observe.ledger import Curve
from zerosim.worlds.here import HERE
from zerosim.worlds.objects import broadcast_object, gather_objects

Lane = Literal["computation", "waiting", "collectives", "communication out", "communication in", "offload"]
COMPUTATION: Lane = "computation"
WAITING: Lane = "waiting"
COLLECTIVES: Lane = "collectives"
OUT: Lane = "communication out"
IN: Lane = "communication in"
OFFLOAD: Lane = "offload"
WAIT = "wait"
"""The name under which instruments are notified of waits for the second channel."""


class Span(msgspec.Struct, frozen=True):
    """One activity of a rank. Spans in one lane and channel never overlap, nor do those of the step's own thread."""

    rank: int
    lane: Lane
    """the rank; `computation`, `waiting`, `collectives`, `communication out`, `communication in` or `offload`"""
    channel: int
    """1: on the step's own thread; 2: on a second thread"""
    what: str
    """in `computation` `forward`, `loss`, `backward`, `recompute`, `update`; in `waiting` `wait`; else the
    collective"""
    unit: str
    """the unit, such as `layers.0`; `norms` for `gather_norms`; empty for the loss"""
    begin_ns: int
    end_ns: int
    """beginning and end"""
    bytes: int = 0
    peer: int | None = None
    waited_ns: int = 0
    """of a message its bytes (of a collective those that this rank sends), the other rank, and how long a receive
    waited; else 0, `null`, 0"""

    @property
    def ns(self) -> int:
        """The duration."""
        return self.end_ns - self.begin_ns

    def later(self, by_ns: int) -> "Span":
        """The span, begun and ended so much later."""
        return msgspec.structs.replace(self, begin_ns=self.begin_ns + by_ns, end_ns=self.end_ns + by_ns)


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """The times of one step of one rank."""

    computation_ns: int
    waiting_ns: int
    waiting_for_memory_ns: int
    idle_ns: int
    """time in computation, exposed communication, exposed copies to the host and back, and none of these; they add up
    to the step"""
    communication_ns: int
    hidden_ns: int
    """time in collectives; the part that overlaps computation"""
    moving_ns: int
    """time of copies to the host and back that overlap the step"""


@dataclass(frozen=True)
class RankStep:
    """One step of one rank: its spans in the order in which they ended, and the memory that was alive in it."""

    rank: int
    step: int
    begin_ns: int
    end_ns: int
    spans: list[Span]
    memory: Curve = field(default_factory=list)

    @property
    def ns(self) -> int:
        return self.end_ns - self.begin_ns

    @property
    def times(self) -> StepTimes:
        """The times of the step: exposed is what its own thread waits for or communicates, and no other channel."""
        own, second = range(1, 2), range(2, sys.maxsize)
        computing, collectives, copies = self._spans(COMPUTATION), self._spans(COLLECTIVES), self._spans(OFFLOAD, own)
        waiting = [*self._spans(WAITING), *self._spans(COLLECTIVES, own)]
        return StepTimes(
            computation_ns=covered_ns(computing), waiting_ns=covered_ns(waiting),
            waiting_for_memory_ns=covered_ns(copies), communication_ns=covered_ns(collectives),
            idle_ns=self.ns - covered_ns([*computing, *waiting, *copies]),
            hidden_ns=covered_ns(collectives) + covered_ns(computing) - covered_ns([*collectives, *computing]),
            moving_ns=covered_ns(self._spans(OFFLOAD, second)))

    def _spans(self, lane: Lane, channels: range = range(sys.maxsize)) -> list[Span]:
        return [span for span in self.spans if span.lane == lane and span.channel in channels]


@dataclass(frozen=True)
class ClockOffset:
    """The clock of a rank; its offset is already subtracted from all times."""

    rank: int
    host: str
    offset_ns: int = 0
    uncertainty_ns: int = 0
    """the rank and its host; the offset from rank 0's clock, and half of the shortest of 32 round trips"""


@dataclass(frozen=True)
class Trace:
    """The requested steps of all ranks of a row, on one clock that begins with the first of them."""

    clocks: list[ClockOffset]
    steps: list[RankStep]

    @property
    def hidden(self) -> float | None:
        """The share of communication, 0 to 1, during which its rank computed; None if nothing was sent."""
        times = [step.times for step in self.steps]
        total_ns = sum(step.communication_ns for step in times)
        return sum(step.hidden_ns for step in times) / total_ns if total_ns else None


def together(clocks: list[ClockOffset], steps: Sequence[RankStep]) -> Trace:
    """The ranks' steps on the clock of rank 0, counted from the earliest beginning."""
    offsets = {clock.rank: clock.offset_ns for clock in clocks}
    first_ns = min((step.begin_ns - offsets[step.rank] for step in steps), default=0)
    on_one_clock = []
    for step in steps:
        by_ns = offsets[step.rank] + first_ns
        on_one_clock.append(RankStep(
            step.rank, step.step, step.begin_ns - by_ns, step.end_ns - by_ns,
            [span.later(-by_ns) for span in step.spans], [(at - by_ns, held) for at, held in step.memory]))
    return Trace(clocks, on_one_clock)


def covered_ns(spans: Sequence[Span]) -> int:
    """The time in which at least one of the spans is under way."""
    covered, until_ns = 0, min((span.begin_ns for span in spans), default=0)
    for begin_ns, end_ns in sorted((span.begin_ns, span.end_ns) for span in spans):
        covered += max(end_ns - max(begin_ns, until_ns), 0)
        until_ns = max(until_ns, end_ns)
    return covered


class OpenSpans(threading.local):
    """The unfinished spans of this thread: computations, innermost last, and the beginnings of all others."""

    def __init__(self) -> None:
        self.computations: list[tuple[str, str, int]] = []
        self.collective_ns = 0
        self.moving_ns = 0
        self.sent_bytes = 0
        self.sending_ns = 0
        self.receiving_ns = 0


class Tracer:
    """Records spans between `begin` and `end`, as `rank`; each call of `end` returns those of one step.

    >>> import numpy as np
    >>> from zerosim.observe.observed import Observed
    >>> from zerosim.worlds.local import spawn
    >>> def program(comm):
    ...     tracer = Tracer(comm.rank)
    ...     tracer.begin()
    ...     observed = Observed(comm, tracer)
    ...     observed.named("to myself", observed.exchange)("", np.ones(2), to=0, into=np.empty(2), source=0)
    ...     return [(span.lane, span.what, span.bytes, span.peer) for span in tracer.end(1).spans]
    >>> for figures in spawn(program, ranks=1)[0]:
    ...     print(*figures)
    communication in to myself 16 0
    communication out to myself 16 0
    collectives to myself 16 None
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._spans: list[Span] = []
        self._open = OpenSpans()
        self._thread = 0
        self._others: dict[int, int] = {}
        self._began_ns = 0

    def begin(self) -> None:
        """Record spans from here on; this thread is the step's."""
        self._thread = threading.get_ident()
        self._began_ns = time.monotonic_ns()

    def end(self, step: int) -> RankStep:
        """The spans since `begin`, as step number `step`."""
        ended_ns = time.monotonic_ns()
        self._thread = 0
        spans, self._spans = self._spans, []
        return RankStep(self._rank, step, self._began_ns, ended_ns, spans)

    def computing(self, name: str, owner: str) -> None:
        self._open.computations.append((name, owner, time.monotonic_ns()))

    def computed(self, name: str, owner: str) -> None:
        what, unit, began_ns = self._open.computations.pop()
        if not self._open.computations:
            self._note(WAITING if what == WAIT else COMPUTATION, what, unit, began_ns)

    def began(self, name: str, owner: str) -> None:
        if len(HERE.get().collectives) == 1:
            self._interrupt()
            self._open.collective_ns = time.monotonic_ns()

    def ended(self, name: str, owner: str) -> None:
        if len(HERE.get().collectives) == 1:
            self._note(COLLECTIVES, name, owner, self._open.collective_ns, self._open.sent_bytes)
            self._open.sent_bytes = 0
            self._go_on()

    def moving(self, name: str, owner: str) -> None:
        self._interrupt()
        self._open.moving_ns = time.monotonic_ns()

    def moved(self, name: str, owner: str, moved_bytes: int) -> None:
        self._note(OFFLOAD, name, owner, self._open.moving_ns, moved_bytes)
        self._go_on()

    def _interrupt(self) -> None:
        """End a span of computation that a model's own collective, or a copy within it, interrupts."""
        if self._open.computations:
            self._note(COMPUTATION, *self._open.computations[0])

    def _go_on(self) -> None:
        if self._open.computations:
            self._open.computations[0] = (*self._open.computations[0][:2], time.monotonic_ns())

    def sending(self, outgoing: Payload, to: int) -> None:
        self._open.sending_ns = time.monotonic_ns()

    def sent(self, outgoing: Payload, to: int) -> None:
        self._open.sent_bytes += outgoing.nbytes
        self._note_message(OUT, self._open.sending_ns, outgoing.nbytes, to)

    def receiving(self, into: Payload, source: int) -> None:
        self._open.receiving_ns = time.monotonic_ns()

    def came(self, into: Payload, source: int, at_ns: int) -> None:
        began_ns = self._open.receiving_ns
        self._note_message(IN, began_ns, into.nbytes, source, max(at_ns - began_ns, 0))

    def _note_message(self, lane: Lane, began_ns: int, carried: int, peer: int, waited_ns: int = 0) -> None:
        what, unit = HERE.get().innermost
        self._note(lane, what or "message", unit, began_ns, carried, peer, waited_ns)

    def _note(
        self, lane: Lane, what: str, unit: str, began_ns: int,
        carried: int = 0, peer: int | None = None, waited_ns: int = 0,
    ) -> None:
        if self._thread:
            thread, others = threading.get_ident(), self._others
            channel = 1 if thread == self._thread else others.setdefault(thread, len(others) + 2)
            ended_ns = time.monotonic_ns()
            self._spans.append(
                Span(self._rank, lane, channel, what, unit, began_ns, ended_ns, carried, peer, waited_ns))


QUESTIONS = 32
Now = Callable[[], int]


def brought_together(comm: Communicator, steps: list[RankStep]) -> Trace | None:
    """The trace of all ranks on rank 0, None on the others. All ranks call this."""
    clocks, ranks = offsets(comm), gather_objects(comm, steps)
    return None if ranks is None else together(clocks, [step for steps in ranks for step in steps])


def offsets(comm: Communicator, host: str | None = None, now: Now = time.monotonic_ns) -> list[ClockOffset]:
    """Each rank's clock relative to rank 0's, on rank 0; none on the others. Ranks of one host share a clock."""
    hosts = gather_objects(comm, host or this_host()) or []
    rounds = []
    for _ in range(QUESTIONS * broadcast_object(comm, len(set(hosts)) > 1)):
        asked_ns = now()
        broadcast_object(comm, None)
        times = gather_objects(comm, now()) or []
        rounds.append((now() - asked_ns, asked_ns, times))
    took_ns, asked_ns, times = min(rounds, default=(0, 0, []))
    return [
        ClockOffset(rank, host) if host == hosts[0] else
        ClockOffset(rank, host, times[rank] - (asked_ns + took_ns // 2), took_ns - took_ns // 2)
        for rank, host in enumerate(hosts)]


def this_host() -> str:
    """The name of this host and, on Linux, the identifier of its boot: hosts may share a name."""
    boot = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{platform.node()} {boot}".strip()
