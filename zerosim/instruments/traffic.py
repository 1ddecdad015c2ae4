"""Counts what a rank sends and receives, by wrapping its communicator."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from zerosim.comm import Communicator, Payload, Reduction


@dataclass
class Count:
    """What one collective sent in all of its calls on this rank."""

    calls: int = 0
    sent_bytes: int = 0
    messages: int = 0


@dataclass
class Totals:
    """What went through one communicator, or several that are counted together."""

    sent_bytes: int = 0
    received_bytes: int = 0
    messages: int = 0
    by_collective: dict[str, Count] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


class Current(threading.local):
    """The collectives that this thread is in, innermost last."""

    def __init__(self) -> None:
        self.counts: list[Count] = []


@dataclass(eq=False)
class Traffic:
    """A communicator that counts the messages and bytes that go through it, in all and by collective.

    >>> import numpy as np
    >>> from zerosim.worlds.local import spawn
    >>> def program(comm):
    ...     traffic = Traffic(comm)
    ...     traffic.send(np.zeros(3, np.float32), to=0)
    ...     traffic.recv(into=np.empty(3, np.float32), source=0)
    ...     return traffic.sent_bytes, traffic.messages
    >>> spawn(program, ranks=1)
    [(12, 1)]
    """

    comm: Communicator
    totals: Totals = field(default_factory=Totals)
    _current: Current = field(default_factory=Current)

    @property
    def rank(self) -> int:
        return self.comm.rank

    @property
    def size(self) -> int:
        return self.comm.size

    @property
    def sent_bytes(self) -> int:
        return self.totals.sent_bytes

    @property
    def received_bytes(self) -> int:
        return self.totals.received_bytes

    @property
    def messages(self) -> int:
        return self.totals.messages

    @property
    def by_collective(self) -> dict[str, Count]:
        return self.totals.by_collective

    def exchange(
        self, outgoing: Payload, *, to: int, into: Payload, source: int, reduce: Reduction | None = None
    ) -> None:
        self.comm.exchange(outgoing, to=to, into=into, source=source, reduce=reduce)
        self._count_sent(outgoing)
        self._count_received(into)

    def send(self, outgoing: Payload, *, to: int) -> None:
        self.comm.send(outgoing, to=to)
        self._count_sent(outgoing)

    def recv(self, *, into: Payload, source: int, reduce: Reduction | None = None) -> None:
        self.comm.recv(into=into, source=source, reduce=reduce)
        self._count_received(into)

    def beside(self, comm: Communicator) -> "Traffic":
        """The counts of another channel to the same ranks, which go into the same totals."""
        return Traffic(comm, self.totals, self._current)

    def counted(self, name: str, collective: Callable[..., Any]) -> Callable[..., Any]:
        """`collective`, whose messages are also counted under `name`."""

        def call(*args: Any, **kwargs: Any) -> Any:
            with self.totals.lock:
                count = self.totals.by_collective.setdefault(name, Count())
                count.calls += 1
            self._current.counts.append(count)
            try:
                return collective(*args, **kwargs)
            finally:
                self._current.counts.pop()

        return call

    def _count_sent(self, outgoing: Payload) -> None:
        with self.totals.lock:
            counters: list[Totals | Count] = [self.totals, *self._current.counts]
            for counter in counters:
                counter.sent_bytes += outgoing.nbytes
                counter.messages += 1

    def _count_received(self, into: Payload) -> None:
        with self.totals.lock:
            self.totals.received_bytes += into.nbytes
