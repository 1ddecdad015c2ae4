"""A rank of the MPI world: messages between the ranks of an MPI communicator, as raw bytes of any NumPy dtype.

- A message is copied, and the rest is left to MPI. Buffered semantics mean that a program that works in the local world
  works here at every message size.
- It is matched (`Improbe`) before it is received, so that one of a different length is an error that names both sizes:
  MPI does not define what happens to it, and Open MPI corrupts the heap. Its tag encodes its dtype.
- Waiting polls and yields the processor. Every wait ends after `timeout_seconds`, with the name of the rank that was
  waited for.
- A second channel is a duplicate of the communicator, served by one thread. Messages between two ranks arrive in order,
  so two collectives at once over one channel would receive each other's messages.
"""

import os
import time
import zlib
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from copy import copy
from functools import cache, partial
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from zerosim.core.allocation import Allocator, Array, allocate
from zerosim.core.comm import Exchange, Reduction, check_rank
from zerosim.core.errors import CollectiveError, Deadlock
from zerosim.worlds.delivery import check_into, deliver, refuse_mask
from zerosim.worlds.here import HERE, spaced
from zerosim.worlds.mpi_start import Machine
from zerosim.worlds.world import Result

if TYPE_CHECKING:
    from mpi4py import MPI

Bytes = npt.NDArray[np.uint8]
CLOSE_NOTIFY = 0x7FFF
"""The tag of the last message between two ranks; the largest that every MPI library has."""
SMALL_BYTES = 1 << 14
"""The most bytes of a message whose copy is a Python object; copies of longer ones are kept and reused."""
TAGGED = CLOSE_NOTIFY + 1
"""MPI's tag of messages with tag 0. Tags given by a program do not encode the dtype."""
NOTHING = np.empty(0, np.uint8)
UNFINISHED: list[list[deque["Departure"]]] = []
"""The messages in flight of every communicator of this process: MPI reads their memory, so they must stay alive."""


class Copies:
    """Memory for copies of messages, kept for reuse by size: the page faults of fresh memory cost more than a message.

    Sizes are rounded up by a quarter at most, so that messages of similar length share it.

    >>> copies = Copies()
    >>> memory = copies.take(100)
    >>> copies.give(memory)
    >>> memory.nbytes, copies.take(97) is memory
    (112, True)
    """

    def __init__(self, allocate: Allocator = allocate) -> None:
        self.allocate = allocate
        self._free: defaultdict[int, list[Bytes]] = defaultdict(list)

    def take(self, needed_bytes: int) -> Bytes:
        """Memory of at least `needed_bytes` bytes."""
        grain = 1 << max(needed_bytes.bit_length() - 3, 0)
        capacity = -(-needed_bytes // grain) * grain
        free = self._free[capacity]
        return free.pop() if free else self.allocate(capacity, np.uint8, kind="buffers", owner="messages")

    def give(self, memory: Bytes) -> None:
        """Return memory for reuse."""
        self._free[memory.nbytes].append(memory)


def shaped(memory: Bytes, like: Array) -> Array:
    """The first bytes of `memory` as an array with the shape and dtype of `like`."""
    return memory[: like.nbytes].view(like.dtype).reshape(like.shape)


@cache
def dtype_tag(dtype: np.dtype[Any]) -> int:
    """The tag of messages of this dtype, the same in every process; two dtypes nearly never share one."""
    return zlib.crc32(str(dtype if dtype.fields is None else dtype.descr).encode()) % CLOSE_NOTIFY


class Departure(NamedTuple):
    """A message in flight: MPI reads `memory` until `request` is complete."""

    request: "MPI.Request"
    memory: bytes | Bytes
    sent_bytes: int
    copies: Copies


class MpiCommunicator:
    """A rank of the MPI world: a `Communicator` of NumPy arrays.

    `comm` is any communicator of mpi4py, such as `MPI.COMM_WORLD.Dup()`, used for these messages only. If it has only
    some ranks of a world, `numbers` gives for each rank of that world its number in `comm`, `MPI.PROC_NULL` for the
    others. `came_ns` is the time at which the last received message was matched, by the monotonic clock.

    Raises `CollectiveError` for invalid ranks, arrays and lengths, `Deadlock` after a wait of `timeout_seconds`.
    """

    def __init__(
        self, comm: "MPI.Intracomm", timeout_seconds: float = 60.0, *, numbers: Sequence[int] | None = None
    ) -> None:
        from mpi4py import MPI  # noqa: PLC0415 - a communicator exists, so it is loaded

        check_timeout(timeout_seconds)
        self.numbers = numbers = range(comm.size) if numbers is None else numbers
        self.rank, self.size = numbers.index(comm.rank), len(numbers)
        self.timeout_seconds, self.came_ns = timeout_seconds, 0
        self._comm, self._status, self._tag = comm, MPI.Status(), MPI.ANY_TAG
        self._members = [rank for rank, number in enumerate(numbers) if number != MPI.PROC_NULL]
        self._departures: list[deque[Departure]] = [deque() for _ in numbers]
        UNFINISHED.append(self._departures)
        self.copies = Copies()
        self._unheard, self._unclaimed = set(self._members), Counter[int]()
        self._dropped: list[tuple[object, Bytes]] = []
        vendor, version = MPI.get_vendor()
        self.library = f"{vendor} {'.'.join(map(str, version))}"
        self.machine = Machine([0] * comm.size, 0)
        self._leaving = False

    def take_buffers_from(self, allocate: Allocator) -> None:
        """Let all memory for later messages of more than `SMALL_BYTES` come from `allocate`, for a ledger to count."""
        self.copies = Copies(allocate)

    def channel(
        self, timeout_seconds: float | None = None, ranks: Sequence[int] | None = None
    ) -> "MpiCommunicator":
        """Another communicator of the same ranks, with messages separate from those of this one.

        With `ranks` only these ranks call it and belong to it, under the numbers that they have here; `among` gives
        them numbers of their own. It is not closed at exit.
        """
        from mpi4py import MPI  # noqa: PLC0415 - a communicator exists, so it is loaded

        comm, numbers = self._comm, self.numbers
        if ranks is not None:
            group = comm.Get_group().Incl([numbers[rank] for rank in ranks])
            numbers = [ranks.index(rank) if rank in ranks else MPI.PROC_NULL for rank in range(self.size)]
        other = MpiCommunicator(comm.Dup() if ranks is None else comm.Create_group(group),
                                timeout_seconds or self.timeout_seconds, numbers=numbers)
        other.take_buffers_from(self.copies.allocate)
        return other

    def tagged(self, tag: int) -> "MpiCommunicator":
        """A communicator of the messages under `tag`; it receives no others, and does not check their dtypes."""
        from mpi4py import MPI  # noqa: PLC0415 - a communicator exists, so it is loaded

        most = int(self._comm.Get_attr(MPI.TAG_UB) or TAGGED) - TAGGED
        if not 0 <= tag <= most:
            raise CollectiveError(f"tag={tag}: tags are whole numbers from 0 to {most:,} with this MPI library")
        other = copy(self)
        other._tag, other._status = TAGGED + tag, MPI.Status()
        return other

    def own_collectives(self) -> dict[str, Callable[[Array, Array], object]]:
        """The MPI library's own collectives between these ranks, from an array into another; they reduce by maximum."""
        from mpi4py import MPI  # noqa: PLC0415 - a communicator exists, so it is loaded

        return {
            "all_reduce": lambda x, out: self._comm.Allreduce(x, out, MPI.MAX),
            "reduce_scatter": lambda x, out: self._comm.Reduce_scatter_block(x, out, MPI.MAX),
            "all_gather": self._comm.Allgather,
            "broadcast": lambda x, out: self._comm.Bcast(out),
        }

    def exchange(
        self, outgoing: Array, *, to: int, into: Array, source: int, reduce: Reduction | None = None
    ) -> None:
        """Send `outgoing` to rank `to`; at the same time receive from `source`, as `recv` does."""
        self._check(outgoing, to, into, source)
        self.depart(outgoing, to)
        self.arrive(into, source, reduce)

    def exchange_all(self, exchanges: Sequence[Exchange]) -> None:
        for exchange in exchanges:
            self._check(exchange.outgoing, exchange.to, exchange.into, exchange.source)
        for exchange in exchanges:
            self.depart(exchange.outgoing, exchange.to)
        for exchange in exchanges:
            self.arrive(exchange.into, exchange.source, exchange.reduce)

    def send(self, outgoing: Array, *, to: int) -> None:
        """Send a copy of `outgoing` to rank `to`; never waits for it, whatever the length."""
        self._check(outgoing, to, NOTHING, self.rank)
        self.depart(outgoing, to)

    def recv(self, *, into: Array, source: int, reduce: Reduction | None = None) -> None:
        """Receive the next message of `source`: `into`, or `into = reduce(arrived, into)`."""
        self._check(NOTHING, self.rank, into, source)
        self.arrive(into, source, reduce)

    def _check(self, outgoing: Array, to: int, into: Array, source: int) -> None:
        """Refuse wrong arrays and ranks before anything is sent."""
        if self._leaving:
            raise CollectiveError(f"rank {self.rank} has closed this communicator: close it after the last message")
        if not (type(to) is int and type(source) is int and 0 <= to < self.size and 0 <= source < self.size):
            check_rank(to, self.size, "to")
            check_rank(source, self.size, "source")
        if type(outgoing) is not np.ndarray or outgoing.dtype.hasobject:
            check_array(outgoing, "outgoing")
        if type(into) is not np.ndarray or into.dtype.hasobject or not into.flags.writeable:
            check_array(into, "into")
            check_into(into)

    def close(self) -> None:
        """Wait, up to `timeout_seconds`, until all messages have been sent and every other rank closes too.

        Nothing may be sent afterwards. A rank that still computes after that time is not waited for.

        Raises `CollectiveError` naming a rank whose message was not received here, and `Deadlock` naming one that
        does not receive.
        """
        if not self._leaving:
            self._leaving = True
            for to in self._members:
                self._comm.Isend(NOTHING, self.numbers[to], CLOSE_NOTIFY).Free()
        deadline = time.monotonic() + self.timeout_seconds
        while not self._all_have_left() and time.monotonic() < deadline:
            os.sched_yield()
        for source, unclaimed in self._unclaimed.items():
            raise CollectiveError(
                f"rank {self.rank} ended without receiving {unclaimed} message(s) from rank {source}: "
                "every send needs its receive")
        for to in self._members:
            if (waiting := self._waiting_bytes(to)) is not None:
                raise self._waited(f"for rank {to} to receive {waiting} bytes")

    def depart(self, outgoing: Array, to: int) -> None:
        """Copy `outgoing`, and let MPI send the copy, under the tag of its dtype if the program gives none."""
        tag = self._tag if self._tag >= TAGGED else dtype_tag(outgoing.dtype)
        if outgoing.nbytes <= SMALL_BYTES:
            memory: Any = outgoing.tobytes()
            request = self._comm.Isend(memory, self.numbers[to], tag)
        else:
            memory = self.copies.take(outgoing.nbytes)
            shaped(memory, outgoing)[...] = outgoing
            request = self._comm.Isend(memory[: outgoing.nbytes], self.numbers[to], tag)
        if not request.Test():
            self._waiting_bytes(to)
            self._departures[to].append(Departure(request, memory, outgoing.nbytes, self.copies))
        elif not isinstance(memory, bytes):
            self.copies.give(memory)

    def arrive(self, into: Array, source: int, reduce: Reduction | None) -> None:
        """Receive the next message of `source`."""
        if reduce is None and into.flags.c_contiguous:
            self.match(into, into, source)
        elif into.nbytes <= SMALL_BYTES:
            landing = np.empty(into.shape, into.dtype)
            self.match(landing, into, source)
            deliver(landing, into, reduce)
        else:
            memory = self.copies.take(into.nbytes)
            try:
                self.match(shaped(memory, into), into, source)
                deliver(shaped(memory, into), into, reduce)
            finally:
                self.copies.give(memory)

    def match(self, landing: Array, into: Array, source: int) -> None:
        """Wait for the next message of `source`, and receive it in `landing`.

        Raises the error for a message that does not fit `into`.
        """
        number, status = self.numbers[source], self._status
        message = self._comm.Improbe(number, self._tag, status) or self._polled(
            partial(self._comm.Improbe, number, self._tag, status), source)
        self.came_ns = time.monotonic_ns()
        sent_bytes, tag = status.Get_count(), status.Get_tag()
        fits = sent_bytes == into.nbytes and (tag == dtype_tag(into.dtype) or tag >= TAGGED)
        flat = landing if landing.ndim == 1 else landing.reshape(-1)
        arrived = flat.view(np.uint8) if fits else np.empty(sent_bytes, np.uint8)
        request = message.Irecv(arrived)
        if not request.Test():
            self._polled(request.Test, source)
        if not fits:
            raise self._unexpected(arrived, tag, into, source)

    def _unexpected(self, arrived: Bytes, tag: int, into: Array, source: int) -> CollectiveError | Deadlock:
        """The error for a message of a different length or dtype than `into`, or the last one of a rank."""
        if tag == CLOSE_NOTIFY:
            self._unheard.discard(source)
            return Deadlock(
                f"rank {self.rank} waits for a message from rank {source}, which has finished{spaced(HERE.get())}")
        other = "" if tag == dtype_tag(into.dtype) else " of a different dtype"
        return CollectiveError(
            f"rank {source} sent {len(arrived)} bytes{other} to rank {self.rank}, which receives them into "
            f"{into.nbytes} bytes of {into.dtype}{spaced(HERE.get())}: both sides must name the same length and "
            "dtype")

    def _all_have_left(self) -> bool:
        """Whether all messages from here have been sent, and every rank's farewell has arrived."""
        for source in list(self._unheard):
            message = self._comm.Improbe(self.numbers[source], status=self._status)
            if message is not None:
                landing = np.empty(self._status.Get_count(), np.uint8)
                self._dropped.append((message.Irecv(landing), landing))
                if self._status.Get_tag() == CLOSE_NOTIFY:
                    self._unheard.discard(source)
                else:
                    self._unclaimed[source] += 1
        return not self._unheard and all(self._waiting_bytes(to) is None for to in self._members)

    def _waiting_bytes(self, to: int) -> int | None:
        """The length of the first unsent message to `to`, None if there is none; frees the memory of those before."""
        departures = self._departures[to]
        while departures and departures[0].request.Test():
            sent = departures.popleft()
            if not isinstance(sent.memory, bytes):
                sent.copies.give(sent.memory)
        return departures[0].sent_bytes if departures else None

    def _polled(self, done: Callable[[], Result | None], source: int) -> Result:
        """Wait for a message of `source`, until `done` returns a true value, which is the result."""
        deadline = time.monotonic() + self.timeout_seconds
        while not (result := done()):
            if time.monotonic() > deadline:
                raise self._waited(f"for a message from rank {source}")
            os.sched_yield()
        return result

    def _waited(self, awaited: str) -> Deadlock:
        return Deadlock(
            f"rank {self.rank} waited {self.timeout_seconds:g} s {awaited}{spaced(HERE.get())}; every send needs "
            "its receive, and a slow rank a longer timeout_seconds")


def check_timeout(seconds: Any) -> None:
    """Refuse anything but a positive finite number."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < inf:
        raise CollectiveError(f"timeout_seconds={seconds!r}: give a positive finite number of seconds")


def check_array(array: object, role: str) -> None:
    """Refuse an object without raw bytes to send or to receive into."""
    if not isinstance(array, np.ndarray):
        raise CollectiveError(f"{role} is of type {type(array).__name__}; under MPI a message is a NumPy array")
    refuse_mask(array, role)
    if array.dtype.hasobject:
        raise CollectiveError(
            f"{role} has dtype {array.dtype}; under MPI a message is of fixed-size elements, Python objects travel in "
            "the local world only")
