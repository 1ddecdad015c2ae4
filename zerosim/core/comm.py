"""The communicator: collectives communicate through `exchange`, `send` and `recv` only.

A receive always names its source. There are no tags, no wildcards and no probing, so what a program computes,
what it sends and when its virtual clock ticks do not depend on how ranks happen to be scheduled.

`among(comm, ranks)` renumbers ranks and observes nothing. Messages still travel in `comm`, so errors name the ranks
of the world.

Receive and reduction are one primitive. A world may receive in pieces or reduce from a peer's memory, and no
algorithm changes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from zerosim.core.errors import CollectiveError

Payload = Any
"""The contents of a message: NumPy arrays in every world; in the local world also symbols and bare shapes."""

Reduction = Callable[..., Any]
"""A binary ufunc such as `np.add`, or any function of `(arrived, mine)` that returns their reduction."""


class Swapped:
    """`ufunc` with the arrived array as its right operand: `into = ufunc(into, arrived)`.

    >>> Swapped(np.subtract)(np.array([1]), np.array([10]))
    array([9])
    """

    def __init__(self, ufunc: np.ufunc) -> None:
        self.ufunc = ufunc

    def __call__(self, arrived: Payload, mine: Payload) -> Payload:
        return self.ufunc(mine, arrived)

    def reduce_into(self, arrived: Payload, into: Payload) -> None:
        """The same in place.

        One element is not: NumPy takes it for a sum over one axis, and keeps the other one of two NaNs.
        """
        if into.size == 1:
            into[...] = self.ufunc(into, arrived)
        else:
            self.ufunc(into, arrived, out=into)


class Exchange(NamedTuple):
    """One of several exchanges at once: the arguments of `Communicator.exchange`."""

    outgoing: Payload
    to: int
    into: Payload
    source: int
    reduce: Reduction | None = None


class Communicator(Protocol):
    """A rank among `size`, which can send and receive.

    Buffered-copy semantics: the receiver gets the contents that `outgoing` had at the call, however late the message
    arrives, and a send never waits for its receiver. `into` is complete on return. Messages between two ranks arrive in
    the order in which they were sent. A rank may send to itself.

    One thread uses a communicator at a time; threads that communicate at once need a channel each.
    """

    @property
    def rank(self) -> int:
        """This rank's number, from 0."""

    @property
    def size(self) -> int:
        """The number of ranks."""

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

    def exchange_all(self, exchanges: Sequence[Exchange]) -> None:
        """Do several exchanges at once: all are begun, then all are complete.

        Every `outgoing` is sent with the contents that it had at the call; messages are received in the order of
        `exchanges`. A two-way ring sends to both neighbours in this way, as NCCL's groups do.

        >>> from zerosim.worlds.local import spawn
        >>> def program(comm):
        ...     arrived = np.zeros((2, 1), int)
        ...     comm.exchange_all([
        ...         Exchange(np.array([comm.rank]), right(comm), arrived[0], left(comm)),
        ...         Exchange(np.array([comm.rank]), left(comm), arrived[1], right(comm))])
        ...     return arrived.ravel().tolist()
        >>> spawn(program, ranks=4, sends="rendezvous")
        [[3, 1], [0, 2], [1, 3], [2, 0]]
        """

    def send(self, outgoing: Payload, *, to: int) -> None:
        """Send a copy of `outgoing` to rank `to`."""

    def recv(self, *, into: Payload, source: int, reduce: Reduction | None = None) -> None:
        """Receive the next message of `source`: `into = arrived` or, with `reduce`, `into = reduce(arrived, into)`.

        Raises `CollectiveError` when the message has a different length or dtype than `into`, and `Deadlock` when it
        cannot arrive, or has not arrived in time.
        """


def right(comm: Communicator) -> int:
    """The next rank of the ring.

    >>> from zerosim.worlds.local import spawn
    >>> spawn(right, ranks=3), spawn(left, ranks=3)
    ([1, 2, 0], [2, 0, 1])
    """
    return (comm.rank + 1) % comm.size


def left(comm: Communicator) -> int:
    """The previous rank of the ring."""
    return (comm.rank - 1) % comm.size


class ExchangesTogether(ABC):
    """A communicator for which one exchange is several at once, of which there is one."""

    @abstractmethod
    def exchange_all(self, exchanges: Sequence[Exchange]) -> None: ...

    def exchange(
        self, outgoing: Payload, *, to: int, into: Payload, source: int, reduce: Reduction | None = None
    ) -> None:
        self.exchange_all([Exchange(outgoing, to, into, source, reduce)])


class SendsFirst(ExchangesTogether):
    """A communicator whose exchanges are sends and then receives, because none of its sends waits."""

    @abstractmethod
    def send(self, outgoing: Payload, *, to: int) -> None: ...

    @abstractmethod
    def recv(self, *, into: Payload, source: int, reduce: Reduction | None = None) -> None: ...

    def exchange_all(self, exchanges: Sequence[Exchange]) -> None:
        for exchange in exchanges:
            self.send(exchange.outgoing, to=exchange.to)
        for exchange in exchanges:
            self.recv(into=exchange.into, source=exchange.source, reduce=exchange.reduce)


class SomeRanks:
    """A communicator of some ranks of `comm`, numbered from 0; rank i is rank `number(i)` of `comm`."""

    def __init__(self, comm: Communicator, rank: Any, size: int, number: Callable[[Any], Any], stride: int = 1) -> None:
        self.rank = rank
        self.size = size
        self.comm = comm
        self.stride = stride
        self._number = number

    def _checked(self, rank: Any, role: str) -> Any:
        """The number in `comm` of this communicator's `rank`."""
        check_rank(rank, self.size, role)
        return self._number(rank)

    @property
    def came_ns(self) -> int:
        """The time at which the last message began to arrive, by the clock of the underlying communicator."""
        return int(getattr(self.comm, "came_ns", 0))

    def exchange(
        self, outgoing: Payload, *, to: int, into: Payload, source: int, reduce: Reduction | None = None
    ) -> None:
        self.comm.exchange(
            outgoing, to=self._checked(to, "to"), into=into, source=self._checked(source, "source"), reduce=reduce)

    def exchange_all(self, exchanges: Sequence[Exchange]) -> None:
        self.comm.exchange_all([
            exchange._replace(to=self._checked(exchange.to, "to"), source=self._checked(exchange.source, "source"))
            for exchange in exchanges])

    def send(self, outgoing: Payload, *, to: int) -> None:
        self.comm.send(outgoing, to=self._checked(to, "to"))

    def recv(self, *, into: Payload, source: int, reduce: Reduction | None = None) -> None:
        self.comm.recv(into=into, source=self._checked(source, "source"), reduce=reduce)


def strided(comm: Communicator, rank: Any, size: int, *, first: Any, stride: int) -> SomeRanks:
    """A communicator whose rank i is rank first + i · stride of `comm`.

    In the lockstep world `rank` and `first` are vectors: one object then stands for the communicators of all groups.
    """
    return SomeRanks(comm, rank, size, lambda number: first + number * stride, stride)


def among(comm: Communicator, ranks: Sequence[int]) -> Communicator:
    """A communicator of these `ranks` of `comm`, in which `ranks[i]` is rank i.

    Each of the ranks calls it with the same `ranks`; the others need not. Messages travel in `comm` itself, in order
    with its other messages.

    Raises `CollectiveError` if `ranks` names a rank twice, names one that `comm` does not have, or lacks the caller.

    >>> from zerosim.collectives import all_reduce
    >>> from zerosim.worlds.local import spawn
    >>> def program(comm):
    ...     half = among(comm, [2, 0] if comm.rank % 2 == 0 else [1, 3])
    ...     return half.rank, all_reduce(half, 10 ** comm.rank).tolist()
    >>> spawn(program, ranks=4)
    [(1, 101), (0, 1010), (0, 101), (1, 1010)]
    """
    ranks = tuple(ranks)
    for rank in ranks:
        check_rank(rank, comm.size, "ranks")
    if len(set(ranks)) < len(ranks):
        raise CollectiveError(f"ranks={list(ranks)} names a rank twice; name each rank once")
    if comm.rank not in ranks:
        raise CollectiveError(f"ranks={list(ranks)} lack rank {comm.rank}, the calling rank; only these ranks may call")
    return SomeRanks(comm, ranks.index(comm.rank), len(ranks), ranks.__getitem__)


def check_rank(rank: Any, size: int, role: str) -> None:
    """Refuse anything but an integer of 0 … size − 1 as the `role` ("to" or "source") of a message."""
    if type(rank) is int and 0 <= rank < size:
        return
    if isinstance(rank, bool) or not isinstance(rank, int | np.integer) or not 0 <= rank < size:
        name = getattr(rank, "__name__", None)
        what = f"{role}={rank!r} is not a rank" if name is None else f"{role} is the function {name}; call it"
        raise CollectiveError(f"{what}; give an integer from 0 to {size - 1}")
