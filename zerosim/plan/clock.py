"""The virtual clock of a rank, in integer nanoseconds: one count for computation and one for communication.

    now       the time of the step's code: computation and waiting
    stream    the end of the last collective that was begun; collectives run one after the other, in order

The two counts wait for each other only where the code waits: at once for a collective of the step itself, and at the
use of the result for an overlapped collective. A running collective occupies a share of the device.
"""

from collections import Counter, defaultdict
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
    ...     clock.communicate("all_gather", 70, "layers.0", sent_bytes=8, messages=1)
    >>> clock.compute("forward", 50)
    >>> clock.wait(clock.stream_ns)
    >>> clock.now_ns, clock.exposed_ns
    (170, 20)

    Computation beside a collective that occupies a fifth of the device slows down by that share.

    >>> clock = VirtualClock(taken_by_collectives=0.2)
    >>> with clock.overlapped():
    ...     clock.communicate("all_gather", 50, "layers.0", sent_bytes=8, messages=1)
    >>> clock.compute("forward", 100)
    >>> clock.now_ns
    110
    """

    taken_by_collectives: float = 0.0
    traced: bool = True
    """Whether spans are kept."""
    now_ns: int = 0
    stream_ns: int = 0
    due_ns: int = 0
    """The time at which all gradients have been reduced for which only the update waits."""
    idle_ns: int = 0
    """Waiting for passes of other ranks of a pipeline: the bubble."""
    counts: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """What adds up over a step: nanoseconds of `computing`, by what is done, and `bound by`, by what bounds it; of
    `communicating`, by collective, with its `bytes` and `messages`; and of `waiting`, all of it `exposed`. A rehearsal
    has the tape's `operations` here too."""
    spans: list[Span] = field(default_factory=list)
    _overlapped: bool = False
    _open: list[tuple[str, str, int]] = field(default_factory=list)

    @property
    def exposed_ns(self) -> int:
        """Exposed communication."""
        return self.counts["waiting"]["exposed"]

    @property
    def doing(self) -> str:
        """The innermost operation that has begun and not ended."""
        return self._open[-1][0] if self._open else ""

    def compute(self, what: str, ns: int, bound: str = "memory") -> None:
        """Compute for `ns`, and longer by the share of the device that running collectives take."""
        running_ns, left = max(self.stream_ns - self.now_ns, 0), 1.0 - self.taken_by_collectives
        self._advance(what, ns + round(min(ns / left, running_ns) * self.taken_by_collectives), bound)

    def carry(self, what: str, unit: str, ns: int, moved_bytes: int) -> None:
        """Copy to or from the host's memory, while the step waits."""
        self._span(OFFLOAD, 1, what, unit, self.now_ns, self.now_ns + ns, moved_bytes)
        self._advance("offload", ns, "offload")

    def _advance(self, what: str, ns: int, bound: str) -> None:
        self.now_ns += ns
        self.counts["computing"][what] += ns
        self.counts["bound by"][bound] += ns

    def communicate(self, what: str, ns: int, unit: str, sent_bytes: int, messages: int) -> None:
        """Begin a collective now, or at the end of the previous one; wait for it, unless it is overlapped."""
        began_ns = max(self.now_ns, self.stream_ns)
        self.stream_ns = began_ns + ns
        self.travel(what, unit, began_ns, self.stream_ns, sent_bytes, messages)
        if not self._overlapped:
            self.wait(self.stream_ns)

    def travel(self, what: str, unit: str, began_ns: int, ended_ns: int, sent_bytes: int, messages: int) -> None:
        """Count messages that are under way between two times."""
        for count, more in (("communicating", ended_ns - began_ns), ("bytes", sent_bytes), ("messages", messages)):
            self.counts[count][what] += more
        self._span(COLLECTIVES, 2 if self._overlapped else 1, what, unit, began_ns, ended_ns, sent_bytes)

    def wait(self, until_ns: int) -> None:
        """Wait until an overlapped collective or transfer ends; the wait counts as exposed."""
        self.counts["waiting"]["exposed"] += max(until_ns - self.now_ns, 0)
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
            self._span(WAITING if what == WAIT else COMPUTATION, 1, what, unit, began_ns, self.now_ns)

    def _span(self, *about: Any) -> None:
        if self.traced:
            self.spans.append(Span(0, *about))
