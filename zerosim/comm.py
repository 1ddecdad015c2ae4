"""All that a collective may ask of the world: to send, to receive, or to do both at once.

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
    def rank(self) -> int:
        """This rank's number, from 0."""

    @property
    def size(self) -> int:
        """How many ranks there are."""

    def exchange(
        self,
        outgoing: Payload,
        *,
        to: int,
        into: Payload,
        source: int,
        reduce: Reduction | None = None,
    ) -> None:
        """Send `outgoing` to rank `to`; at the same time receive from `source`, as `recv` does.

        `outgoing` and `into` may overlap.
        """

    def send(self, outgoing: Payload, *, to: int) -> None:
        """Send a copy of `outgoing` to rank `to`."""

    def recv(self, *, into: Payload, source: int, reduce: Reduction | None = None) -> None:
        """Receive the next message of `source`: `into = arrived` or, with `reduce`, `into = reduce(arrived, into)`.

        Raises `CollectiveError` when the message has another length or dtype than `into`, and `Deadlock` when it
        cannot come, or has not come in time.
        """


def right(comm: Communicator) -> int:
    """The next rank of the ring."""
    return (comm.rank + 1) % comm.size


def left(comm: Communicator) -> int:
    """The previous rank of the ring."""
    return (comm.rank - 1) % comm.size
