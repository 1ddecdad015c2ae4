"""The traffic ledger: it counts the messages and bytes of a rank, in total, by collective and by host.

Fingerprints, losses and results are sent over the bare communicator, which is not observed; only the messages of a
stage count.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, fields

from zerosim.core.comm import Payload, Reduction
from zerosim.worlds.here import HERE


@dataclass
class Count:
    """The messages and bytes of one rank, measured or due: of all collectives, or of one in all of its calls."""

    calls: int = 0
    sent_bytes: int = 0
    messages: int = 0
    """The sent messages."""
    received_bytes: int = 0
    between_bytes: int = 0
    """The sent bytes that left this rank's host."""
    largest_message_bytes: int = 0
    by_collective: "dict[str, Count]" = field(default_factory=dict)
    """In a count of all collectives, that of each."""

    @property
    def inside_bytes(self) -> int:
        """The sent bytes that stayed on this rank's host."""
        return self.sent_bytes - self.between_bytes

    def __add__(self, other: "Count") -> "Count":
        return Count(
            self.calls + other.calls, self.sent_bytes + other.sent_bytes, self.messages + other.messages,
            self.received_bytes + other.received_bytes, self.between_bytes + other.between_bytes,
            max(self.largest_message_bytes, other.largest_message_bytes))

    def times(self, count: int) -> "Count":
        """The count of so many equal calls."""
        return Count(
            self.calls * count, self.sent_bytes * count, self.messages * count, self.received_bytes * count,
            self.between_bytes * count, self.largest_message_bytes * min(count, 1))


@dataclass(eq=False)
class Traffic(Count):
    """The messages and bytes of the communicators that it observes, in total and by collective.

    >>> import numpy as np
    >>> from zerosim.observe.observed import Observed
    >>> from zerosim.worlds.local import spawn
    >>> def program(comm):
    ...     traffic = Traffic()
    ...     observed = Observed(comm, traffic)
    ...     observed.send(np.zeros(3, np.float32), to=0)
    ...     observed.recv(into=np.empty(3, np.float32), source=0)
    ...     return traffic.sent_bytes, traffic.messages
    >>> spawn(program, ranks=1)
    [(12, 1)]
    """

    received_messages: int = 0
    away: Callable[[int], bool] = lambda rank: False
    """Whether a rank is on another host than this one."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def _counts(self) -> list[Count]:
        """The counts of the present message: of all collectives, and of each that this thread is in."""
        return [self, *[self.by_collective[name] for name, _ in HERE.get().collectives]]

    def sent(self, outgoing: Payload, to: int) -> None:
        sent_bytes, away = outgoing.nbytes, self.away(to)
        with self._lock:
            for count in self._counts():
                count.sent_bytes += sent_bytes
                count.messages += 1
                count.between_bytes += sent_bytes if away else 0
                count.largest_message_bytes = max(count.largest_message_bytes, sent_bytes)

    def received(self, into: Payload, source: int, reduce: Reduction | None) -> None:
        with self._lock:
            self.received_messages += 1
            for count in self._counts():
                count.received_bytes += into.nbytes

    def began(self, name: str, owner: str) -> None:
        with self._lock:
            self.by_collective.setdefault(name, Count()).calls += 1

    def counted(self) -> Count:
        """What has been counted so far, as a value."""
        return Count(*(getattr(self, figure.name) for figure in fields(Count)))
