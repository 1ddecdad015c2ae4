"""The MPI world: one process for each rank, on one host or many. Only the modules `mpi…` import mpi4py.

- A message is its raw bytes, so every NumPy dtype travels, those of ml_dtypes too.
- `send` copies the message into memory of its own and leaves the rest to MPI. Buffered semantics mean that a program
  that works in the local world works here at every message size.
- Receives are matched first (`Improbe`), so that a message of another length is an error that names both sizes.
- Waiting polls and yields the processor. Where ranks outnumber cores it also rests 50 µs between polls, so that the
  sender can go on. Every wait ends after `timeout_seconds` with the name of the rank that was waited for.
- The first rank to fail prints its traceback and ends the others.
- A process has one connection. A later `connect()` returns the first one's, because MPI has no more communicators
  after about a thousand. A `timeout_seconds` that it names holds from then on; without one nothing changes.
- A second channel is a duplicate of the communicator, served by one thread. Messages between two ranks arrive in
  order, so two collectives at once over one channel would take each other's messages.
"""

import atexit
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from copy import copy
from functools import cache, partial
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import numpy as np

from zerosim.allocation import Allocator, Array
from zerosim.comm import Communicator, Reduction, check_rank
from zerosim.errors import CollectiveError, Deadlock, LengthError, ZerosimError
from zerosim.worlds.board import ANYBODY, CHANNELS, Board, Line, named
from zerosim.worlds.copies import Bytes, Copies, shaped
from zerosim.worlds.delivery import check_into, deliver
from zerosim.worlds.first_failure import FirstFailure
from zerosim.worlds.here import HERE, Spot, explained, spaced
from zerosim.worlds.launcher import has_company
from zerosim.worlds.mpi_messages import FAREWELL, Departure, Unclaimed, check_array, check_timeout, tag_for, tag_of
from zerosim.worlds.mpi_start import Machine, fail_alone, join
from zerosim.worlds.world import Result, counted

if TYPE_CHECKING:
    from mpi4py import MPI

REST = 5e-5  # seconds between two looks for a message, where ranks share cores


def connect(timeout_seconds: float | None = None) -> "MpiCommunicator":
    """This process as one rank among all that the launcher started, or alone without a launcher.

    From here on an exception that nobody catches ends all ranks: the first rank to fail prints one
    line for a `ZerosimError`, its traceback for any other, and its exit code becomes the
    launcher's (3 for those others). At exit `close` is called. Waiting for a message longer than
    `timeout_seconds` raises `Deadlock`. A rank that fails before all are connected ends them by a signal.

    A process has one connection: a later call returns the first's, closed or not. If it gives a
    `timeout_seconds`, that holds from then on; if not, it stays as it was, which is at first 60.

    Raises `LaunchError` without an MPI library, or when the launcher belongs to another one, and
    `CollectiveError` for a `timeout_seconds` that is not positive and finite.
    """
    if timeout_seconds is not None:
        check_timeout(timeout_seconds)
    comm = connection()
    if timeout_seconds is not None:
        comm.timeout_seconds = timeout_seconds
    return comm


@cache
def connection() -> "MpiCommunicator":
    """The connection of this process, made by the first call of `connect`."""
    if not has_company():
        sys.excepthook = fail_alone
    first_failure, machine = join()
    from mpi4py import MPI  # noqa: PLC0415 - only once it is known to work

    comm = MpiCommunicator(MPI.COMM_WORLD.Dup())
    comm.write_on(first_failure.board)
    comm.machine = machine
    if machine.shared_cores:
        comm.rest_between_polls()
    atexit.register(close_or_fail, comm, first_failure)
    return comm


MOST_BYTES = 2**31 - 1
"""The most bytes of a message, with a library of MPI 3 or before."""
UNFINISHED: list[list[deque["Departure"]]] = []
"""The messages that every communicator of this process has under way: MPI reads from it, whoever else forgets it."""


class MpiCommunicator:
    """A rank of the MPI world: a `Communicator` of NumPy arrays.

    `comm` is any communicator of mpi4py, such as `MPI.COMM_WORLD.Dup()`; none but these messages may
    travel in it. Where it has some ranks of a world, `numbers` has for each rank of that world its number in `comm`,
    `MPI.PROC_NULL` for those who are not in it. What is on its way when a communicator is dropped without `close` stays
    in memory. `came_ns` is when the message that was received last began to come, by the monotonic clock.

    Raises `CollectiveError` for ranks, arrays and lengths that cannot work, `Deadlock` after a wait
    of `timeout_seconds`.
    """

    def __init__(
        self, comm: "MPI.Intracomm", timeout_seconds: float = 60.0, *, numbers: Sequence[int] | None = None
    ) -> None:
        from mpi4py import MPI  # noqa: PLC0415 - whoever has a comm has it loaded

        check_timeout(timeout_seconds)
        self._numbers = range(comm.size) if numbers is None else numbers
        self.rank = self._numbers.index(comm.rank)
        self.size = len(self._numbers)
        self._members = [rank for rank, number in enumerate(self._numbers) if number != MPI.PROC_NULL]
        vendor, version = MPI.get_vendor()
        self.library = f"{vendor} {'.'.join(map(str, version))}"
        self.timeout_seconds = timeout_seconds
        self.came_ns = 0
        self.machine = Machine([0] * comm.size, 0)
        self.board: Board | None = None
        self._line: Line | None = None
        self._first = True
        self._channels = 0
        self._spot = Spot()
        self._comm = comm
        self._status = MPI.Status()
        self._copies = Copies()
        self._departures: list[deque[Departure]] = [deque() for _ in self._numbers]
        self._unheard = set(self._members)
        self._unclaimed: list[Unclaimed] = []
        self._tag, self._any_source = MPI.ANY_TAG, MPI.ANY_SOURCE
        self._leaving = False
        self._pause: Callable[[], None] = os.sched_yield
        self._most_bytes = MOST_BYTES if MPI.Get_version() < (4, 0) else inf
        UNFINISHED.append(self._departures)

    def take_buffers_from(self, allocate: Allocator) -> None:
        """Let memory for messages come from `allocate`, so that a ledger sees it: all of it from here on."""
        self._copies = Copies(allocate)

    def channel(
        self, timeout_seconds: float | None = None, ranks: Sequence[int] | None = None
    ) -> "MpiCommunicator":
        """Another communicator of the same ranks, in which messages travel apart from those in this one.

        With `ranks` only these make it, and only they are in it, under the numbers that they have here: `among` gives
        them numbers of their own. Its `timeout_seconds` are those of this one, unless given, and its memory for
        messages comes from the same place. Nobody closes it at exit.
        """
        made, numbers = (self._comm.Dup(), self._numbers) if ranks is None else self._of_some(ranks)
        other = MpiCommunicator(made, timeout_seconds or self.timeout_seconds, numbers=numbers)
        other.take_buffers_from(self._copies.allocate)
        other._pause = self._pause
        other._first = False
        self._channels += 1
        if self.board is not None and self._channels < CHANNELS:
            other.board, other._line = self.board, self.board.line(self.rank, self._channels)
        return other

    def tagged(self, tag: int) -> "MpiCommunicator":
        """The messages of this communicator that travel under `tag`, as a communicator that sees no others.

        Their dtypes are not checked. Messages with a tag travel in a channel of which all messages have one.
        """
        found = copy(self)
        found._tag, found._status = tag_of(tag, self._comm), type(self._status)()
        return found

    def arrived(self, source: int | None) -> int | None:
        """The rank whose message is here: `source`, or any rank for None. None if there is no message; never waits."""
        number = self._any_source if source is None else self._numbers[source]
        here = self._comm.Iprobe(number, self._tag, self._status)
        return self._numbers.index(self._status.Get_source()) if here else None

    def wait_for_any(self) -> int:
        """The rank whose message came first, after waiting for one."""
        self.note_spot()
        self._poll(lambda: self.arrived(None) is not None, ANYBODY, self._pause)
        return self._numbers.index(self._status.Get_source())

    def _of_some(self, ranks: Sequence[int]) -> "tuple[MPI.Intracomm, list[int]]":
        """Some ranks in a communicator of MPI's, and the number of each rank in it."""
        from mpi4py import MPI  # noqa: PLC0415 - whoever has a comm has it loaded

        numbers = [MPI.PROC_NULL] * self.size
        for number, rank in enumerate(ranks):
            numbers[rank] = number
        group = self._comm.Get_group().Incl([self._numbers[rank] for rank in ranks])
        return self._comm.Create_group(group), numbers

    def rest_between_polls(self) -> None:
        """Leave the cores to others while there is no message: 4 ranks on 2 cores took a third less of their time."""
        self._pause = partial(time.sleep, REST)

    def write_on(self, board: Board | None) -> None:
        """Let the others see on `board` what this rank does."""
        self.board = board
        self._line = None if board is None else board.line(self.rank, 0)

    def note_spot(self) -> None:
        """Let the others see where this thread is."""
        if self._line is not None and HERE.spot is not self._spot:
            self._spot = HERE.spot
            self._line.goes_to(self._spot)

    def exchange(
        self,
        outgoing: Array,
        *,
        to: int,
        into: Array,
        source: int,
        reduce: Reduction | None = None,
    ) -> None:
        """Send `outgoing` to `to` while receiving from `source` as `recv` does."""
        self._check_outgoing(outgoing, to)
        self._check_into(into, source)
        self._post(outgoing, to)
        self._complete(into, source, reduce)

    def send(self, outgoing: Array, *, to: int) -> None:
        """Send a copy of `outgoing` to rank `to`; never waits for it, whatever the length."""
        self._check_outgoing(outgoing, to)
        self._post(outgoing, to)

    def recv(self, *, into: Array, source: int, reduce: Reduction | None = None) -> None:
        """Receive the next message of `source`: `into`, or `into = reduce(arrived, into)`."""
        self._check_into(into, source)
        self._complete(into, source, reduce)

    def close(self) -> None:
        """Wait, up to `timeout_seconds`, until all that was sent has left and every other rank closes too.

        Nothing may be sent afterwards. A rank that still computes when the time is over is not waited for.

        Raises `CollectiveError` naming a rank whose message was not received here, and `Deadlock` naming one that
        does not receive.
        """
        if not self._leaving:
            self._leaving = True
            if self.board is not None and self._first:
                self.board.finish(self.rank)
            for to in self._members:
                self._comm.Isend(np.empty(0, np.uint8), self._numbers[to], FAREWELL).Free()
        deadline = time.monotonic() + self.timeout_seconds
        while not self._all_have_left() and time.monotonic() < deadline:
            self._pause()
        for source in self._members:
            unclaimed = sum(message.source == source for message in self._unclaimed)
            if unclaimed:
                raise CollectiveError(
                    f"rank {self.rank} ended without receiving {unclaimed} message(s) from rank {source}: "
                    "every send needs its receive"
                )
        for to, departures in enumerate(self._departures):
            if departures:
                raise self._waited(f"for rank {to} to receive {departures[0].sent_bytes} bytes")

    def _all_have_left(self) -> bool:
        """Whether all that was sent from here has left, and every rank's farewell is here."""
        for departures in self._departures:
            while departures and departures[0].request.Test():
                departures.popleft()
        for source in list(self._unheard):
            message = self._comm.Improbe(self._numbers[source], status=self._status)
            if message is None:
                continue
            landing = np.empty(self._status.Get_count(), np.uint8)
            arriving = Unclaimed(source, message.Irecv(landing), landing)
            if self._status.Get_tag() == FAREWELL:
                self._unheard.discard(source)
            else:
                self._unclaimed.append(arriving)
        return not self._unheard and not any(self._departures)

    def _post(self, outgoing: Array, to: int) -> None:
        self.note_spot()
        departures = self._departures[to]
        while departures and departures[0].request.Test():
            departures.popleft().give_back()
        memory = self._copies.take(outgoing.nbytes)
        np.copyto(shaped(memory, outgoing), outgoing)
        request = self._comm.Isend(memory[: outgoing.nbytes], self._numbers[to], tag_for(outgoing.dtype, self._tag))
        departures.append(Departure(request, memory, outgoing.nbytes, self._copies))

    def _complete(self, into: Array, source: int, reduce: Reduction | None) -> None:
        self.note_spot()
        if reduce is None and into.flags.c_contiguous:
            self._receive(into.reshape(-1).view(np.uint8), source, into.dtype)
            return
        memory = self._copies.take(into.nbytes)
        self._receive(memory[: into.nbytes], source, into.dtype)
        deliver(shaped(memory, into), into, reduce)
        self._copies.give(memory)

    def _receive(self, landing: Bytes, source: int, dtype: np.dtype[Any]) -> None:
        """Fill `landing` with the next message of `source`.

        A message is matched before it is received, so that its length is known: MPI may do anything
        with one that is longer than the memory given to it, and Open MPI corrupts the heap.
        """
        number = self._numbers[source]
        message = self._poll(lambda: self._comm.Improbe(number, self._tag, status=self._status), source, self._pause)
        self.came_ns = time.monotonic_ns()
        sent_bytes, tag = self._status.Get_count(), self._status.Get_tag()
        fits = sent_bytes == landing.nbytes
        arriving = landing if fits else np.empty(sent_bytes, np.uint8)
        request = message.Irecv(arriving)
        self._poll(request.Test, source, os.sched_yield)
        if tag == FAREWELL:
            self._unheard.discard(source)
            raise Deadlock(
                f"rank {self.rank} waits for a message from rank {source}, which has finished{spaced(HERE.spot)}")
        if not fits or tag != tag_for(dtype, self._tag):
            other = "" if tag == tag_for(dtype, self._tag) else " of another dtype"
            raise LengthError(
                f"rank {source} sent {sent_bytes} bytes{other} to rank {self.rank}, which receives them "
                f"into {landing.nbytes} bytes of {dtype}{spaced(HERE.spot)}: both sides must name the same length and "
                "dtype",
                arriving,
            )

    def _poll(self, done: Callable[[], Result | None], source: int, pause: Callable[[], None]) -> Result:
        """Wait until `done` gives something, and return it; meanwhile the board shows that this rank waits."""
        result = done()
        if result:
            return result
        deadline = time.monotonic() + self.timeout_seconds
        if self._line is not None:
            self._line.waits(source)
        while not result:
            if time.monotonic() > deadline:
                raise self._waited(f"for a message from {named(source)}")
            pause()
            result = done()
        if self._line is not None:
            self._line.goes_on()
        return result

    def _waited(self, awaited: str) -> Deadlock:
        everyone = spaced(HERE.spot) if self.board is None else explained(self.board.what_all_do())
        return Deadlock(
            f"rank {self.rank} waited {self.timeout_seconds:g} s {awaited}{everyone}; every send "
            "needs its receive, and a slow rank a longer timeout_seconds"
        )

    def _check_outgoing(self, outgoing: Array, to: int) -> None:
        self._check_open()
        check_rank(to, self.size, "to")
        check_array(outgoing, "outgoing")
        if outgoing.nbytes > self._most_bytes:
            raise CollectiveError(
                f"outgoing has {outgoing.nbytes:,} bytes, and over {self.library} a message has at most "
                f"{self._most_bytes:,}: send it in pieces; a run does with parallel.bucket_mb, or smaller units")

    def _check_into(self, into: Array, source: int) -> None:
        self._check_open()
        check_rank(source, self.size, "source")
        check_array(into, "into")
        check_into(into)

    def _check_open(self) -> None:
        if self._leaving:
            raise CollectiveError(f"rank {self.rank} has closed this communicator: close it when all has been said")


class MpiWorld:
    """The ranks that the launcher started, of which this process is one: a `World`."""

    kind: ClassVar[str] = "mpi"
    rank_is_process: ClassVar[bool] = True
    copies_messages: ClassVar[bool] = True

    def __init__(self, comm: MpiCommunicator) -> None:
        self.ranks = comm.size
        self.library = comm.library
        self.shared_cores, self.hosts = comm.machine.shared_cores, comm.machine.hosts
        self._comm = comm
        self._channels = [comm]

    @property
    def words(self) -> str:
        return f"{counted(self.ranks)}, one process each, over {self.library}"

    def run(self, program: Callable[[Communicator], Result]) -> list[Result]:
        return [program(self._comm)]

    def channel(self) -> MpiCommunicator:
        """A second channel, as `MpiCommunicator.channel` makes it."""
        other = self._comm.channel()
        self._channels.append(other)
        return other

    def take_buffers_from(self, allocate: Allocator) -> None:
        for channel in self._channels:
            channel.take_buffers_from(allocate)

    def kill(self, comm: Communicator) -> NoReturn:
        """End this process as the operating system does when memory is short."""
        self._comm.note_spot()
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("nobody survives SIGKILL")

    def stop(self, comm: Communicator) -> None:
        """Stop this process until somebody sends SIGCONT."""
        self._comm.note_spot()
        os.kill(os.getpid(), signal.SIGSTOP)


def close_or_fail(comm: MpiCommunicator, first_failure: FirstFailure) -> None:
    """Close `comm`; what prevents it ends all ranks, as an uncaught exception does. A forked child is no part of it."""
    if first_failure.is_elsewhere():
        return
    try:
        comm.close()
    except ZerosimError as error:
        first_failure(type(error), error, error.__traceback__)
