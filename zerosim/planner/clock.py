"""The virtual clock of a rank: integer nanoseconds, one count for what it computes and one for what it communicates.

    now       when the step's own text stands: computation, and waiting
    stream    when the last collective that was begun will have ended; they go one after the other, in order

The two wait for each other only where the text does: a collective of the step itself is waited for at once, one that
goes on beside it when its result is wanted. Meanwhile it takes its share of what the device computes with.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from zerosim.comm import Payload
from zerosim.instruments.trace import COLLECTIVES, COMPUTATION, OFFLOAD, WAIT, WAITING, RankStep, Span

Counts = dict[tuple[str, str], Any]


@dataclass(frozen=True)
class Reading:
    """What a clock says, and how many spans it has."""

    now_ns: int
    exposed_ns: int
    counts: Counts
    spans: int


@dataclass(frozen=True)
class Interval:
    """What has taken place between two readings. Two that are equal left as much on its way, too."""

    ns: int
    exposed_ns: int
    counts: Counts
    spans: list[Span]


@dataclass(eq=False)
class VirtualClock:
    """Starts at 0.

    >>> clock = VirtualClock()
    >>> clock.compute("forward", 100)
    >>> with clock.beside():
    ...     ready = clock.communicate("all_gather", 70)
    >>> clock.compute("forward", 50)
    >>> clock.wait(ready)
    >>> clock.now_ns, clock.exposed_ns
    (170, 20)

    What is computed beside a collective that has a fifth of the device is slower by that.

    >>> clock = VirtualClock(taken_by_collectives=0.2)
    >>> with clock.beside():
    ...     ready = clock.communicate("all_gather", 50)
    >>> clock.compute("forward", 100)
    >>> clock.now_ns
    110
    """

    taken_by_collectives: float = 0.0
    now_ns: int = 0
    stream_ns: int = 0
    exposed_ns: int = 0
    """While nothing is computed because something is communicated."""
    computing_ns: Counter[str] = field(default_factory=Counter)
    communicating_ns: Counter[str] = field(default_factory=Counter)
    sent_counts: Counter[str] = field(default_factory=Counter)
    """Bytes, and messages."""
    bound_ns: Counter[str] = field(default_factory=Counter)
    """What is computed, by what bounds it: products, attention, memory, what is offloaded."""
    spans: list[Span] = field(default_factory=list)
    _beside: bool = False
    _open: list[tuple[str, str, int]] = field(default_factory=list)

    @property
    def doing(self) -> str:
        """What the step has begun, innermost, and not ended."""
        return self._open[-1][0] if self._open else ""

    def compute(self, what: str, ns: int, bound: str = "memory") -> None:
        ns += self._slowed_ns(ns)
        self.now_ns += ns
        self.computing_ns[what] += ns
        self.bound_ns[bound] += ns

    def aside(self, work: Callable[[], None]) -> int:
        """The time that `work` computes, which does not pass for the step."""
        before_ns = self.now_ns
        work()
        took_ns, self.now_ns = self.now_ns - before_ns, before_ns
        return took_ns

    def carry(self, what: str, unit: str, began_ns: int, ended_ns: int, moved_bytes: int) -> None:
        """Note what is carried between tiers of memory beside the step."""
        self.spans.append(Span(0, OFFLOAD, 2, what, unit, began_ns, ended_ns, moved_bytes))

    def wait_for_host(self, until_ns: int) -> None:
        """Nothing else goes on until the memory of the host has, or has given, what is offloaded."""
        ns = max(until_ns - self.now_ns, 0)
        self.now_ns += ns
        self.computing_ns["offload"] += ns
        self.bound_ns["offload"] += ns

    @property
    def free_ns(self) -> int:
        """When a collective can begin: now, or once the one before has ended."""
        return max(self.now_ns, self.stream_ns)

    def _slowed_ns(self, ns: int) -> int:
        """How much longer what takes `ns` alone takes because of what is communicated beside it."""
        beside_ns, left = self.stream_ns - self.now_ns, 1.0 - self.taken_by_collectives
        if beside_ns <= 0:
            return 0
        return round(min(ns / left, beside_ns) * self.taken_by_collectives)

    def communicate(self, what: str, ns: int, unit: str = "", sent_bytes: int = 0, others_ns: int = 0) -> int:
        """A collective, begun as soon as it can be, and all others have come to it; when it will have ended."""
        began_ns = max(self.free_ns, others_ns)
        self.stream_ns = began_ns + ns
        self.communicating_ns[what] += ns
        channel = 2 if self._beside else 1
        self.spans.append(Span(0, COLLECTIVES, channel, what, unit, began_ns, self.stream_ns, sent_bytes))
        if not self._beside:
            self.wait(self.stream_ns)
        return self.stream_ns

    def send(self, sent_bytes: Any, messages: Any) -> None:
        """Count what is sent; both may be vectors, with a number for each rank."""
        for what, count in (("bytes", sent_bytes), ("messages", messages)):
            self.sent_counts[what] = self.sent_counts[what] + count

    def sent(self, outgoing: Payload, to: int) -> None:
        """Count a message that has been sent."""
        self.send(outgoing.nbytes, 1)

    def wait(self, until_ns: int) -> None:
        """For what goes on beside the step."""
        self.exposed_ns += max(until_ns - self.now_ns, 0)
        self.now_ns = max(until_ns, self.now_ns)

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Let what is communicated go on beside the step."""
        self._beside = True
        try:
            yield
        finally:
            self._beside = False

    def computing(self, name: str, owner: str) -> None:
        """Note that the step begins to compute, or to wait."""
        self._open.append((name, owner, self.now_ns))

    def computed(self, name: str, owner: str) -> None:
        what, unit, began_ns = self._open.pop()
        if not self._open:
            lane = WAITING if what == WAIT else COMPUTATION
            self.spans.append(Span(0, lane, 1, what, unit, began_ns, self.now_ns))

    @property
    def step(self) -> RankStep:
        """All that took place."""
        return RankStep(0, 1, 0, self.now_ns, self.spans)

    def reading(self) -> "Reading":
        """All counts as they stand."""
        counts = {(name, what): count for name, found in self._counts.items() for what, count in found.items()}
        return Reading(self.now_ns, self.exposed_ns, counts, len(self.spans))

    def since(self, reading: "Reading") -> "Interval":
        """What has taken place since then, as it would be told by a clock that was at 0 then."""
        counts = {key: count - reading.counts.get(key, 0) for key, count in self.reading().counts.items()}
        spans = [
            span._replace(begin_ns=span.begin_ns - reading.now_ns, end_ns=span.end_ns - reading.now_ns)
            for span in self.spans[reading.spans :]
        ]
        return Interval(self.now_ns - reading.now_ns, self.exposed_ns - reading.exposed_ns, counts, spans)

    @property
    def _counts(self) -> dict[str, Counter[str]]:
        return {
            "computing": self.computing_ns, "communicating": self.communicating_ns, "sent": self.sent_counts,
            "bound by": self.bound_ns,
        }

    def repeat(self, times: int, interval: "Interval") -> None:
        """Count an interval so many times more; it has no further spans. Nothing may be on its way.

        >>> clock = VirtualClock()
        >>> before = clock.reading()
        >>> clock.compute("forward", 5)
        >>> clock.repeat(3, clock.since(before))
        >>> clock.now_ns
        20
        """
        assert self.stream_ns <= self.now_ns
        self.now_ns += times * interval.ns
        self.exposed_ns += times * interval.exposed_ns
        for name, counts in self._counts.items():
            for what in counts:
                counts[what] += times * interval.counts.get((name, what), 0)
