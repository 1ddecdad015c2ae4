"""Counts what a rank sends and receives, by wrapping its communicator."""

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
    sent_bytes: int = 0
    received_bytes: int = 0
    messages: int = 0
    by_collective: dict[str, Count] = field(default_factory=dict)
    _current: list[Count] = field(default_factory=list)

    @property
    def rank(self) -> int:
        return self.comm.rank

    @property
    def size(self) -> int:
        return self.comm.size

    def exchange(
        self,
        outgoing: Payload,
        *,
        to: int,
        into: Payload,
        source: int,
        reduce: Reduction | None = None,
    ) -> None:
        self.comm.exchange(outgoing, to=to, into=into, source=source, reduce=reduce)
        self._count(outgoing)
        self.received_bytes += into.nbytes

    def send(self, outgoing: Payload, *, to: int) -> None:
        self.comm.send(outgoing, to=to)
        self._count(outgoing)

    def recv(self, *, into: Payload, source: int, reduce: Reduction | None = None) -> None:
        self.comm.recv(into=into, source=source, reduce=reduce)
        self.received_bytes += into.nbytes

    def counted(self, name: str, collective: Callable[..., Any]) -> Callable[..., Any]:
        """`collective`, whose messages over this communicator are also counted under `name`."""

        def call(*args: Any, **kwargs: Any) -> Any:
            count = self.by_collective.setdefault(name, Count())
            count.calls += 1
            self._current.append(count)
            try:
                return collective(*args, **kwargs)
            finally:
                self._current.pop()

        return call

    def _count(self, outgoing: Payload) -> None:
        self.sent_bytes += outgoing.nbytes
        self.messages += 1
        for count in self._current:
            count.sent_bytes += outgoing.nbytes
            count.messages += 1
