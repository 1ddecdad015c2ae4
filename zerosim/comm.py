"""All that a collective may ask of the world: two neighbours' worth of messages, and nothing else.

A receive always names its source. There are no tags, no wildcards and no probing, so what a program computes,
what it sends and when its virtual clock ticks do not depend on how ranks happen to be scheduled.
"""

from collections.abc import Callable
from typing import Any, Protocol

Payload = Any
"""What travels: NumPy arrays in every world; in the local world also symbols and bare shapes."""

Reduction = Callable[..., Any]
"""A binary ufunc such as `np.add`, or any function of `(arrived, mine)` that returns their reduction."""


class Communicator(Protocol):
    """A rank among `size`, which can send and receive.

    Buffered-copy semantics: what was in `outgoing` at the call is what arrives, however late, and a send never
    waits for its receiver. `into` is complete on return. Messages between two ranks arrive in the order in which they
    were sent. A rank may send to itself.
    """

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def exchange(
        self,
        outgoing: Payload,
        *,
        to: int,
        into: Payload,
        source: int,
        reduce: Reduction | None = None,
    ) -> None:
        """Send `outgoing` to rank `to` while receiving from `source`: `into`, or `into = reduce(arrived, into)`."""

    def send(self, outgoing: Payload, *, to: int) -> None:
        """Send a copy of `outgoing` to rank `to`."""

    def recv(self, *, into: Payload, source: int, reduce: Reduction | None = None) -> None:
        """Receive the next message of rank `source`: `into`, or `into = reduce(arrived, into)`."""


def right(comm: Communicator) -> int:
    """The next rank of the ring."""
    return (comm.rank + 1) % comm.size


def left(comm: Communicator) -> int:
    """The previous rank of the ring."""
    return (comm.rank - 1) % comm.size
