"""The lockstep world: all ranks at once, for code in which every rank does the same. Payloads are lengths alone.

    rank       a vector: the numbers of all ranks
    chunks     indexed by a vector of numbers, one for each rank, or cut by vectors of bounds
    array      the lengths of one message on all ranks, without its values

Code runs once for any number of ranks, so a step on 16,384 ranks costs little more to plan than one on 64. The world
checks that all ranks do the same: code that branches on a condition of some ranks only, as for a root, or cuts pieces
of several lengths, raises `Unlike`. Then the local world runs the same code rank by rank.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, NoReturn, Protocol, SupportsIndex

import numpy as np
import numpy.typing as npt

from zerosim.core.allocation import Array
from zerosim.core.comm import Communicator, Exchange, ExchangesTogether, Payload, Reduction
from zerosim.core.errors import CollectiveError, Unlike
from zerosim.core.sharding import bounds
from zerosim.worlds.world import OneProcess, Result, counted


class RankVector(np.ndarray[Any, Any]):
    """A number for every rank. It converts to a bool or an index only if all ranks have the same."""

    def __bool__(self) -> bool:
        if self.size and (self == self.flat[0]).view(np.ndarray).all():
            return bool(self.flat[0])
        raise Unlike("ranks would do different things: the code branches on a condition that holds on some ranks only")

    def __index__(self) -> int:
        if self.size and (self == self.flat[0]).view(np.ndarray).all():
            return int(self.flat[0])
        raise Unlike("ranks would do different things: the code needs one number where each rank has its own")


def ranks(count: int) -> RankVector:
    """The numbers 0 … count − 1, as a vector.

    >>> bool(ranks(4) >= 0), (ranks(4) + 1) % 4
    (True, RankVector([1, 2, 3, 0]))
    """
    return np.arange(count).view(RankVector)


@dataclass(frozen=True, eq=False)
class LockstepArray:
    """A message or a stretch of memory on every rank: the number of elements on each."""

    lengths: Array
    dtype: np.dtype[Any]

    @cached_property
    def nbytes(self) -> Array:
        """The bytes on every rank."""
        return self.lengths * self.dtype.itemsize

    def copy(self) -> "LockstepArray":
        return self

    def __len__(self) -> int:
        if np.ptp(self.lengths):
            raise Unlike("ranks would do different things: their messages are not equally long")
        return int(self.lengths[0])

    def __getitem__(self, index: Any) -> "LockstepArray":
        if index is Ellipsis or index == slice(None):
            return self
        raise Unlike("ranks would do different things: they slice a message at different places")

    def __setitem__(self, index: Any, other: Any) -> None:
        """Writes nothing."""


class LockstepChunks:
    """The chunks of a vector of `count` elements on every rank, as `sharding` cuts it.

    >>> chunks = LockstepChunks(10, 4, np.float32)
    >>> chunks[ranks(4)].lengths.tolist(), chunks[:].lengths.tolist()
    ([3, 3, 3, 1], [10, 10, 10, 10])
    """

    def __init__(self, count: int, size: int, dtype: npt.DTypeLike) -> None:
        self._size = size
        self._dtype = np.dtype(dtype)
        self._starts = np.array([start for start, _ in bounds(count, size)] + [count])
        chunks = np.full(size, count // size)
        self._any_chunk = LockstepArray(chunks, self._dtype) if count % size == 0 else None

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: Any) -> LockstepArray:
        if self._any_chunk is not None and not isinstance(index, slice):
            return self._any_chunk
        first, last = (index.start, index.stop) if isinstance(index, slice) else (index, index + 1)
        first = 0 if first is None else first
        last = self._size if last is None else last
        lengths = self._starts[last] - self._starts[first]
        return LockstepArray(np.broadcast_to(np.asarray(lengths), (self._size,)), self._dtype)


class LockstepMessages(NamedTuple):
    """One message of every rank: its receiver, the rank that it receives from, and the bytes that it sends."""

    to: Array
    source: Array
    sent_bytes: Array


class Network(Protocol):
    """A network that records the messages of every exchange."""

    def exchange(self, at_once: Sequence[LockstepMessages]) -> None: ...


class SilentNetwork:
    """A network that records nothing."""

    def exchange(self, at_once: Sequence[LockstepMessages]) -> None:
        """Record nothing."""


class LockstepCommunicator(ExchangesTogether):
    """All ranks of a lockstep world."""

    def __init__(self, size: int, network: Network) -> None:
        self.rank: Any = ranks(size)
        self.size = size
        self._network = network
        self._pairs: dict[tuple[bytes, bytes], tuple[Array, Array]] = {}

    def exchange_all(self, exchanges: Sequence[Exchange]) -> None:
        self._network.exchange([self._messages(each) for each in exchanges])

    def _messages(self, exchange: Exchange) -> LockstepMessages:
        receivers, senders = self._paired(exchange.to, exchange.source)
        if exchange.outgoing is not exchange.into:
            self._check(exchange.outgoing, exchange.into, senders)
        return LockstepMessages(receivers, senders, exchange.outgoing.nbytes)

    def _paired(self, to: Any, source: Any) -> tuple[Array, Array]:
        """The receiver and the source of each rank, as arrays; equal arguments return the same arrays."""
        receivers, senders = self._numbers(to), self._numbers(source)
        key = receivers.tobytes(), senders.tobytes()
        if key not in self._pairs:
            if not np.array_equal(senders[receivers], np.arange(self.size)):
                raise Unlike("ranks would do different things: not everyone receives from the rank that sends to it")
            self._pairs[key] = receivers, senders
        return self._pairs[key]

    def _check(self, outgoing: LockstepArray, into: LockstepArray, senders: Array) -> None:
        if np.array_equal(outgoing.lengths[senders], into.lengths) and outgoing.dtype == into.dtype:
            return
        rank = int(np.argmax(outgoing.lengths[senders] != into.lengths))
        raise CollectiveError(
            f"rank {senders[rank]} sent {outgoing.lengths[senders[rank]]} × {outgoing.dtype} to rank {rank}, which "
            f"receives it into {into.lengths[rank]} × {into.dtype}: both sides must name the same length and dtype"
        )

    def send(self, outgoing: Payload, *, to: Any) -> None:
        raise Unlike("ranks would do different things: some send and others receive")

    def recv(self, *, into: Payload, source: Any, reduce: Reduction | None = None) -> None:
        raise Unlike("ranks would do different things: some send and others receive")

    def _numbers(self, given: SupportsIndex | Array) -> Array:
        if isinstance(given, np.ndarray) and given.shape == (self.size,):
            return given.view(np.ndarray)
        return np.broadcast_to(np.asarray(given), (self.size,))


@dataclass(frozen=True)
class LockstepWorld(OneProcess):
    """All ranks in one thread, at once: a `World`.

    >>> from zerosim.core.comm import left, right
    >>> def program(comm):
    ...     chunks = LockstepChunks(10, comm.size, np.float32)
    ...     comm.exchange(chunks[comm.rank], to=right(comm), into=chunks[left(comm)], source=left(comm))
    ...     return comm.size
    >>> LockstepWorld(4).run(program)
    [4]
    """

    ranks: int
    network: Network = SilentNetwork()
    kind: ClassVar[str] = "lockstep"
    library: ClassVar[str] = "vectors"

    @property
    def words(self) -> str:
        return f"{counted(self.ranks)} at once (lockstep world)"

    def run(self, program: Callable[[Communicator], Result]) -> list[Result]:
        """The result of `program`, which is the same on all ranks. Raises `Unlike` if ranks would differ."""
        return [program(LockstepCommunicator(self.ranks, self.network))]

    def kill(self, comm: Communicator) -> NoReturn:
        """Refused: all ranks are one thread."""
        raise Unlike("a single rank cannot end in the lockstep world")

    def stop(self, comm: Communicator) -> NoReturn:
        """Refused: all ranks are one thread."""
        self.kill(comm)
