"""A rank of the MPI world: messages are raw bytes that MPI carries, so every NumPy dtype can be sent.

- `send` copies the message into its own memory and leaves the rest to MPI. Buffered semantics mean that a program that
  works in the local world works here at every message size.
- A message is matched (`Improbe`) before it is received, so that one of a different length is an error that names both
  sizes: MPI does not define what happens to it, and Open MPI corrupts the heap. Its tag encodes its dtype.
- Waiting polls and yields the processor or, where ranks outnumber cores, sleeps 50 µs. Every wait ends after
  `timeout_seconds`, with the name of the rank that was waited for.
- A second channel is a duplicate of the communicator, served by one thread. Messages between two ranks arrive in
  order, so two collectives at once over one channel would receive each other's messages.
"""

import os
import time
import zlib
from collections import Counter, deque
from collections.abc import Callable, Sequence
from copy import copy
from functools import cache, partial
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from zerosim.core.allocation import Allocator, Array
from zerosim.core.comm import Exchange, Reduction, SendsFirst, check_rank
from zerosim.core.errors import CollectiveError, Deadlock, LengthError
from zerosim.worlds.copies import Bytes, Copies, shaped
from zerosim.worlds.delivery import check_into, deliver, refuse_mask
from zerosim.worlds.here import HERE, spaced
from zerosim.worlds.mpi_start import Machine
from zerosim.worlds.running import OneThread
from zerosim.worlds.world import Result

if TYPE_CHECKING:
    from mpi4py import MPI

REST = 5e-5  # seconds between two polls, if ranks share cores
MOST_BYTES = 2**31 - 1
"""The most bytes of a message, with a library of MPI 3 or before."""
CLOSE_NOTIFY = 0x7FFF
"""The tag of the last message between two ranks; the largest that every MPI library has."""
TAGGED = CLOSE_NOTIFY + 1
"""MPI's tag of messages with tag 0. Tags given by a program do not encode the dtype."""
NOTHING = np.empty(0, np.uint8)
UNFINISHED: list[list[deque["Departure"]]] = []
"""The messages in flight of every communicator of this process: MPI reads their memory, so they must stay alive."""


class Departure(NamedTuple):
    """A message in flight: MPI reads `memory` until `request` is complete."""

    request: "MPI.Request"
    memory: Bytes
    sent_bytes: int
    copies: Copies


class MpiCommunicator(OneThread, SendsFirst):
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
        self._numbers = range(comm.size) if numbers is None else numbers
        self.rank, self.size = self._numbers.index(comm.rank), len(self._numbers)
        self._members = [rank for rank, number in enumerate(self._numbers) if number != MPI.PROC_NULL]
        vendor, version = MPI.get_vendor()
        self.library = f"{vendor} {'.'.join(map(str, version))}"
        self.timeout_seconds, self.longer, self.came_ns = timeout_seconds, "timeout_seconds", 0
        self.machine = Machine([0] * comm.size, 0)
        self._comm, self._status = comm, MPI.Status()
        self._tag, self._any_source = MPI.ANY_TAG, MPI.ANY_SOURCE
        self._departures: list[deque[Departure]] = [deque() for _ in self._numbers]
        UNFINISHED.append(self._departures)
        self._copies = Copies()
        self._unheard, self._unclaimed, self._leaving = set(self._members), Counter[int](), False
        self._dropped: list[tuple[object, Bytes]] = []
        self._pause: Callable[[], None] = os.sched_yield
        self._most_bytes = MOST_BYTES if MPI.Get_version() < (4, 0) else inf

    def take_buffers_from(self, allocate: Allocator) -> None:
        """Let all memory for later messages come from `allocate`, so that a ledger counts it."""
        self._copies = Copies(allocate)

    def channel(
        self, timeout_seconds: float | None = None, ranks: Sequence[int] | None = None
    ) -> "MpiCommunicator":
        """Another communicator of the same ranks, with messages separate from those of this one.

        With `ranks` only these ranks call it and belong to it, under the numbers that they have here; `among` gives
        them numbers of their own. It is not closed at exit.
        """
        made, numbers = (self._comm.Dup(), self._numbers) if ranks is None else self._of_some(ranks)
        other = MpiCommunicator(made, timeout_seconds or self.timeout_seconds, numbers=numbers)
        other.take_buffers_from(self._copies.allocate)
        other._pause = self._pause
        return other

    def _of_some(self, ranks: Sequence[int]) -> "tuple[MPI.Intracomm, list[int]]":
        """An MPI communicator of some ranks, and the number of each rank in it."""
        from mpi4py import MPI  # noqa: PLC0415 - a communicator exists, so it is loaded

        numbers = [MPI.PROC_NULL] * self.size
        for number, rank in enumerate(ranks):
            numbers[rank] = number
        group = self._comm.Get_group().Incl([self._numbers[rank] for rank in ranks])
        return self._comm.Create_group(group), numbers

    def tagged(self, tag: int) -> "MpiCommunicator":
        """A communicator of the messages under `tag`; it receives no others, and does not check their dtypes."""
        from mpi4py import MPI  # noqa: PLC0415 - a communicator exists, so it is loaded

        most = int(self._comm.Get_attr(MPI.TAG_UB) or TAGGED) - TAGGED
        if not 0 <= tag <= most:
            raise CollectiveError(f"tag={tag}: tags are whole numbers from 0 to {most:,} with this MPI library")
        found = copy(self)
        found._tag, found._status = TAGGED + tag, MPI.Status()
        return found

    def arrived(self, source: int | None) -> int | None:
        """The rank whose message is here: `source`, or any rank for None. None if there is no message; never waits."""
        number = self._any_source if source is None else self._numbers[source]
        return self._came_from() if self._comm.Iprobe(number, self._tag, self._status) else None

    def wait_for_any(self) -> int:
        """The rank whose message arrives first; waits for one."""
        self._poll(lambda: self.arrived(None) is not None, "any rank", self._pause)
        return self._came_from()

    def _came_from(self) -> int:
        return self._numbers.index(self._status.Get_source())

    def own_collectives(self) -> dict[str, Callable[[Array, Array], object]]:
        """The MPI library's own collectives between these ranks, from one array of numbers into another; maxima."""
        from mpi4py import MPI  # noqa: PLC0415 - a communicator exists, so it is loaded

        return {
            "all_reduce": lambda x, out: self._comm.Allreduce(x, out, MPI.MAX),
            "reduce_scatter": lambda x, out: self._comm.Reduce_scatter_block(x, out, MPI.MAX),
            "all_gather": self._comm.Allgather,
            "broadcast": lambda x, out: self._comm.Bcast(out),
        }

    def rest_between_polls(self) -> None:
        """Sleep between polls, which frees cores for other ranks: 4 ranks on 2 cores took a third less time."""
        self._pause = partial(time.sleep, REST)

    def exchange_all(self, exchanges: Sequence[Exchange]) -> None:
        for each in exchanges:
            self._check_outgoing(each.outgoing, each.to)
            self._check_into(each.into, each.source)
        super().exchange_all(exchanges)

    def send(self, outgoing: Array, *, to: int) -> None:
        """Send a copy of `outgoing` to rank `to`; never waits for it, whatever the length."""
        self._check_outgoing(outgoing, to)
        self._waiting_bytes(to)
        memory = self._copies.take(outgoing.nbytes)
        np.copyto(shaped(memory, outgoing), outgoing)
        request = self._comm.Isend(memory[: outgoing.nbytes], self._numbers[to], self._tag_of(outgoing.dtype))
        self._departures[to].append(Departure(request, memory, outgoing.nbytes, self._copies))

    def _check_outgoing(self, outgoing: Array, to: int) -> None:
        self._check(outgoing, "outgoing", to, "to")
        if outgoing.nbytes > self._most_bytes:
            raise CollectiveError(
                f"outgoing has {outgoing.nbytes:,} bytes, and over {self.library} a message has at most "
                f"{self._most_bytes:,}: send it in pieces; a run does with parallel.bucket_mb, or smaller units")

    def _check_into(self, into: Array, source: int) -> None:
        self._check(into, "into", source, "source")
        check_into(into)

    def recv(self, *, into: Array, source: int, reduce: Reduction | None = None) -> None:
        """Receive the next message of `source`: `into`, or `into = reduce(arrived, into)`."""
        self._check_into(into, source)
        if reduce is None and into.flags.c_contiguous:
            self._receive(into.reshape(-1).view(np.uint8), source, into.dtype)
            return
        memory = self._copies.take(into.nbytes)
        self._receive(memory[: into.nbytes], source, into.dtype)
        try:
            deliver(shaped(memory, into), into, reduce)
        finally:
            self._copies.give(memory)

    def _receive(self, landing: Bytes, source: int, dtype: np.dtype[Any]) -> None:
        """Fill `landing` with the next message of `source`."""
        look = partial(self._comm.Improbe, self._numbers[source], self._tag, status=self._status)
        message = self._poll(look, f"rank {source}", self._pause)
        self.came_ns = time.monotonic_ns()
        sent_bytes, tag = self._status.Get_count(), self._status.Get_tag()
        arriving = landing if sent_bytes == landing.nbytes else np.empty(sent_bytes, np.uint8)
        self._poll(message.Irecv(arriving).Test, f"rank {source}", os.sched_yield)
        if arriving is landing and tag == self._tag_of(dtype):
            return
        if tag == CLOSE_NOTIFY:
            self._unheard.discard(source)
            raise Deadlock(
                f"rank {self.rank} waits for a message from rank {source}, which has finished{spaced(HERE.location)}")
        other = "" if tag == self._tag_of(dtype) else " of a different dtype"
        raise LengthError(
            f"rank {source} sent {sent_bytes} bytes{other} to rank {self.rank}, which receives them into "
            f"{landing.nbytes} bytes of {dtype}{spaced(HERE.location)}: both sides must name the same length and dtype",
            arriving)

    def close(self) -> None:
        """Wait, up to `timeout_seconds`, until all messages have been sent and every other rank closes too.

        Nothing may be sent afterwards. A rank that still computes after that time is not waited for.

        Raises `CollectiveError` naming a rank whose message was not received here, and `Deadlock` naming one that
        does not receive.
        """
        if not self._leaving:
            self._leaving = True
            for to in self._members:
                self._comm.Isend(NOTHING, self._numbers[to], CLOSE_NOTIFY).Free()
        deadline = time.monotonic() + self.timeout_seconds
        while not self._all_have_left() and time.monotonic() < deadline:
            self._pause()
        for source, unclaimed in self._unclaimed.items():
            raise CollectiveError(
                f"rank {self.rank} ended without receiving {unclaimed} message(s) from rank {source}: "
                "every send needs its receive")
        for to in self._members:
            if (waiting := self._waiting_bytes(to)) is not None:
                raise self._waited(f"for rank {to} to receive {waiting} bytes")

    def _all_have_left(self) -> bool:
        """Whether all messages from here have been sent, and every rank's farewell has arrived."""
        for source in list(self._unheard):
            message = self._comm.Improbe(self._numbers[source], status=self._status)
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
            departures[0].copies.give(departures.popleft().memory)
        return departures[0].sent_bytes if departures else None

    def _tag_of(self, dtype: np.dtype[Any]) -> int:
        """MPI's tag of a message: that of a `tagged` communicator, else that of its dtype."""
        return self._tag if self._tag >= TAGGED else dtype_tag(dtype)

    def _poll(self, done: Callable[[], Result | None], whom: str, pause: Callable[[], None]) -> Result:
        """Wait until `done` returns a true value, and return it."""
        result = done()
        if not result:
            deadline = time.monotonic() + self.timeout_seconds
            while not (result := done()):
                if time.monotonic() > deadline:
                    raise self._waited(f"for a message from {whom}")
                pause()
        return result

    def _waited(self, awaited: str) -> Deadlock:
        return Deadlock(
            f"rank {self.rank} waited {self.timeout_seconds:g} s {awaited}{spaced(HERE.location)}; every send needs "
            f"its receive, and a slow rank a longer {self.longer}")

    def _check(self, array: Array, role: str, rank: int, side: str) -> None:
        self.check_thread()
        if self._leaving:
            raise CollectiveError(f"rank {self.rank} has closed this communicator: close it after the last message")
        check_rank(rank, self.size, side)
        check_array(array, role)


@cache
def dtype_tag(dtype: np.dtype[Any]) -> int:
    """The tag of messages of this dtype, the same in every process; two dtypes nearly never share one."""
    return zlib.crc32(spelled(dtype).encode()) % CLOSE_NOTIFY


def spelled(dtype: np.dtype[Any]) -> str:
    """
    >>> spelled(np.dtype("f4")), spelled(np.dtype([("re", "f4"), ("im", "f4")]))
    ('float32', '8 bytes: re float32 at 0, im float32 at 4')
    """
    if dtype.fields is None:
        return str(dtype)
    fields = (f"{name} {spelled(of)} at {offset}" for name, (of, offset, *_) in dtype.fields.items())
    return f"{dtype.itemsize} bytes: {', '.join(fields)}"


def check_timeout(seconds: Any) -> None:
    """Refuse anything but a positive finite number."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < inf:
        raise CollectiveError(f"timeout_seconds={seconds!r}: a positive finite number of seconds")


def check_array(array: object, role: str) -> None:
    """Refuse an object without raw bytes to send or to receive into."""
    if not isinstance(array, np.ndarray):
        raise CollectiveError(f"{role} is of type {type(array).__name__}; under MPI a message is a NumPy array")
    refuse_mask(array, role)
    if array.dtype.hasobject:
        raise CollectiveError(
            f"{role} has dtype {array.dtype}; under MPI a message is of fixed-size elements, Python objects travel in "
            "the local world only")
