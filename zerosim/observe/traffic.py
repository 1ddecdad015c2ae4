"""The traffic ledger: it counts the messages and bytes of a rank, in total, by collective and by host.

Fingerprints, losses and results are sent over the bare communicator, which is not observed; only the messages of a
stage count.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from zerosim.core.comm import Payload, Reduction


@dataclass
class Count:
    """The messages and bytes of one collective in all of its calls on this rank."""

    calls: int = 0
    sent_bytes: int = 0
    messages: int = 0


class Current(threading.local):
    """The collectives of this thread, innermost last."""

    def __init__(self) -> None:
        self.counts: list[Count] = []


def nobody(rank: int) -> bool:
    """The default `away`: all ranks are on one host."""
    return False


@dataclass(eq=False)
class Traffic:
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

    sent_bytes: int = 0
    messages: int = 0
    received_bytes: int = 0
    received_messages: int = 0
    between_bytes: int = 0
    """The sent bytes that left this rank's host."""
    largest_bytes: int = 0
    """The bytes of the largest sent message."""
    by_collective: dict[str, Count] = field(default_factory=dict)
    away: Callable[[int], bool] = nobody
    """Whether a rank is on another host than this one."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _current: Current = field(default_factory=Current)

    def sent(self, outgoing: Payload, to: int) -> None:
        with self._lock:
            self.sent_bytes += outgoing.nbytes
            self.messages += 1
            self.between_bytes += outgoing.nbytes if self.away(to) else 0
            self.largest_bytes = max(self.largest_bytes, outgoing.nbytes)
            for count in self._current.counts:
                count.sent_bytes += outgoing.nbytes
                count.messages += 1

    def received(self, into: Payload, source: int, reduce: Reduction | None) -> None:
        with self._lock:
            self.received_bytes += into.nbytes
            self.received_messages += 1

    def began(self, name: str, owner: str) -> None:
        with self._lock:
            count = self.by_collective.setdefault(name, Count())
            count.calls += 1
        self._current.counts.append(count)

    def ended(self, name: str, owner: str) -> None:
        self._current.counts.pop()
