"""The traffic ledger: it counts the messages and bytes of a rank, in total, by collective and by host.

Fingerprints, losses and results are sent over the bare communicator, which is not observed; only the messages of a
stage count.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, fields

from zerosim.core.comm import Payload, Reduction


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


class Current(threading.local):
    """The collectives of this thread, innermost last."""

    def __init__(self) -> None:
        self.counts: list[Count] = []


def nobody(rank: int) -> bool:
    """The default `away`: all ranks are on one host."""
    return False


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
    away: Callable[[int], bool] = nobody
    """Whether a rank is on another host than this one."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _current: Current = field(default_factory=Current)

    def sent(self, outgoing: Payload, to: int) -> None:
        with self._lock:
            for count in (self, *self._current.counts):
                count.sent_bytes += outgoing.nbytes
                count.messages += 1
                count.between_bytes += outgoing.nbytes if self.away(to) else 0
                count.largest_message_bytes = max(count.largest_message_bytes, outgoing.nbytes)

    def received(self, into: Payload, source: int, reduce: Reduction | None) -> None:
        with self._lock:
            self.received_messages += 1
            for count in (self, *self._current.counts):
                count.received_bytes += into.nbytes

    def began(self, name: str, owner: str) -> None:
        with self._lock:
            count = self.by_collective.setdefault(name, Count())
            count.calls += 1
        self._current.counts.append(count)

    def ended(self, name: str, owner: str) -> None:
        self._current.counts.pop()

    def counted(self) -> Count:
        """What has been counted so far, as a value."""
        return Count(**{each.name: getattr(self, each.name) for each in fields(Count)})
