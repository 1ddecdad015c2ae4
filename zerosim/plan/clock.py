"""The virtual clock of a rank, in integer nanoseconds: one count for computation and one for communication.

    now       the time of the step's code: computation and waiting
    stream    the end of the last collective that was begun; collectives run one after the other, in order

The two counts wait for each other only where the code waits: at once for a collective of the step itself, and at the
use of the result for an overlapped collective. A running collective occupies a share of the device.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from zerosim.observe.trace import COLLECTIVES, COMPUTATION, OFFLOAD, WAIT, WAITING, Span


@dataclass(eq=False)
class VirtualClock:
    """A clock that starts at 0.

    >>> clock = VirtualClock()
    >>> clock.compute("forward", 100)
    >>> with clock.overlapped():
    ...     ready = clock.communicate("all_gather", 70)
    >>> clock.compute("forward", 50)
    >>> clock.wait(ready)
    >>> clock.now_ns, clock.exposed_ns
    (170, 20)

    Computation beside a collective that occupies a fifth of the device slows down by that share.

    >>> clock = VirtualClock(taken_by_collectives=0.2)
    >>> with clock.overlapped():
    ...     ready = clock.communicate("all_gather", 50)
    >>> clock.compute("forward", 100)
    >>> clock.now_ns
    110
    """

    taken_by_collectives: float = 0.0
    now_ns: int = 0
    stream_ns: int = 0
    exposed_ns: int = 0
    """Exposed communication."""
    computing_ns: Counter[str] = field(default_factory=Counter)
    communicating_ns: Counter[str] = field(default_factory=Counter)
    sent_counts: Counter[str] = field(default_factory=Counter)
    """Bytes and messages."""
    sent_by: Counter[str] = field(default_factory=Counter)
    """Bytes by the name of the collective, of rank 0."""
    due_ns: int = 0
    """The time at which all gradients have been reduced for which only the update waits."""
    idle_ns: int = 0
    """Waiting for passes of other ranks of a pipeline: the bubble."""
    bound_ns: Counter[str] = field(default_factory=Counter)
    """Computing time by what bounds it: products, attention, memory, offloading."""
    spans: list[Span] = field(default_factory=list)
    _overlapped: bool = False
    _open: list[tuple[str, str, int]] = field(default_factory=list)

    @property
    def doing(self) -> str:
        """The innermost operation that has begun and not ended."""
        return self._open[-1][0] if self._open else ""

    def compute(self, what: str, ns: int, bound: str = "memory") -> None:
        """Compute for `ns`, and longer by the share of the device that running collectives take."""
        running_ns, left = max(self.stream_ns - self.now_ns, 0), 1.0 - self.taken_by_collectives
        ns += round(min(ns / left, running_ns) * self.taken_by_collectives)
        self.now_ns += ns
        self.computing_ns[what] += ns
        self.bound_ns[bound] += ns

    def carry(self, what: str, unit: str, ns: int, moved_bytes: int) -> None:
        """Copy to or from the host's memory, while the step waits."""
        self.spans.append(Span(0, OFFLOAD, 1, what, unit, self.now_ns, self.now_ns + ns, moved_bytes))
        self.now_ns += ns
        self.computing_ns["offload"] += ns
        self.bound_ns["offload"] += ns

    def communicate(self, what: str, ns: int, unit: str = "", sent_bytes: int = 0) -> int:
        """Begin a collective now, or at the end of the previous one; return its end."""
        began_ns = max(self.now_ns, self.stream_ns)
        self.stream_ns = began_ns + ns
        self.communicating_ns[what] += ns
        self.sent_by[what] += sent_bytes
        channel = 2 if self._overlapped else 1
        self.spans.append(Span(0, COLLECTIVES, channel, what, unit, began_ns, self.stream_ns, sent_bytes))
        if not self._overlapped:
            self.wait(self.stream_ns)
        return self.stream_ns

    def travel(self, what: str, owner: str, began_ns: int, ended_ns: int, sent_bytes: Any, messages: Any) -> None:
        """Record messages between two times."""
        self.communicating_ns[what] += ended_ns - began_ns
        self.sent_by[what] += sent_bytes
        self.spans.append(Span(0, COLLECTIVES, 1, what, owner, began_ns, ended_ns, sent_bytes))
        self.send(sent_bytes, messages)

    def send(self, sent_bytes: Any, messages: Any) -> None:
        """Count sent bytes and messages; both may be vectors with one number per rank."""
        for what, count in (("bytes", sent_bytes), ("messages", messages)):
            self.sent_counts[what] = self.sent_counts[what] + count

    def wait(self, until_ns: int) -> None:
        """Wait until an overlapped collective or transfer ends; the wait counts as exposed."""
        self.exposed_ns += max(until_ns - self.now_ns, 0)
        self.now_ns = max(until_ns, self.now_ns)

    @contextmanager
    def overlapped(self) -> Iterator[None]:
        """Let the collectives of this block overlap the step."""
        self._overlapped = True
        try:
            yield
        finally:
            self._overlapped = False

    def computing(self, name: str, owner: str) -> None:
        """Record the beginning of a computation or of a wait."""
        self._open.append((name, owner, self.now_ns))

    def computed(self, name: str, owner: str) -> None:
        what, unit, began_ns = self._open.pop()
        if not self._open:
            lane = WAITING if what == WAIT else COMPUTATION
            self.spans.append(Span(0, lane, 1, what, unit, began_ns, self.now_ns))

    @property
    def counts(self) -> dict[str, Counter[str]]:
        """All counts by what is done."""
        return {
            "computing": self.computing_ns, "communicating": self.communicating_ns, "sent": self.sent_counts,
            "sent by": self.sent_by, "bound by": self.bound_ns,
        }
