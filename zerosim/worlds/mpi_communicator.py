"""The MPI world: one process for each rank, on one host or many. `mpi` connects them.

- A message is its raw bytes, so every NumPy dtype can be sent, including those of ml_dtypes.
- Ranks of a host share boxes in memory (`boxes`, `mpi_shared`), unless the transport is "mpi". MPI carries all other
  messages: between hosts, to oneself, and those under tags, which MPI matches.
- With MPI, `send` copies the message into its own memory and leaves the rest to MPI. Buffered semantics mean that a
  program that works in the local world works here at every message size.
- Receives are matched first (`Improbe`), so that a message of a different length is an error that names both sizes.
- Waiting polls and yields the processor. Where ranks outnumber cores it sleeps, until a box rings (`bells`) or, for a
  message of MPI's, 50 µs between polls. Every wait ends after `timeout_seconds`, or earlier if no rank can go on
  (`BoundedWait`), with the name of the rank that was waited for. It also writes waiting messages to boxes, and lets
  MPI make progress.
- A second channel is a duplicate of the communicator, served by one thread. Messages between two ranks arrive in
  order, so two collectives at once over one channel would receive each other's messages.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from math import inf
from threading import get_ident
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from zerosim.allocation import Allocator, Array
from zerosim.comm import Reduction, SendsFirst, check_rank
from zerosim.errors import CollectiveError, Deadlock, LengthError
from zerosim.worlds.bells import Patience
from zerosim.worlds.board import ANYBODY, CHANNELS, Board, BoundedWait, Line, named
from zerosim.worlds.boxes import PENDING, Inbox, Outbox, push_all
from zerosim.worlds.copies import LENT, Bytes, Copies, header, read_header, shaped
from zerosim.worlds.delivery import check_into, deliver
from zerosim.worlds.here import HERE, Location, explained, spaced
from zerosim.worlds.mpi_mail import (
    CLOSE_NOTIFY,
    NOTHING,
    MpiMail,
    check_array,
    check_timeout,
    dtype_tag,
    is_unfinished,
    tag_for,
)
from zerosim.worlds.mpi_shared import NOTHING_SHARED, share
from zerosim.worlds.mpi_start import Machine
from zerosim.worlds.processes import Lookout
from zerosim.worlds.running import OneThread
from zerosim.worlds.world import Result, Transport

if TYPE_CHECKING:
    from mpi4py import MPI

REST = 5e-5  # seconds between two polls for a message of MPI's, if ranks share cores
LOOKS = 20
"""The number of polls of a box before the board shows that a rank waits."""
MOST_BYTES = 2**31 - 1
"""The most bytes of a message, with a library of MPI 3 or before."""


class MpiCommunicator(OneThread, SendsFirst):
    """A rank of the MPI world: a `Communicator` of NumPy arrays.

    `comm` is any communicator of mpi4py, such as `MPI.COMM_WORLD.Dup()`, used for these messages only. If it has only
    some ranks of a world, `numbers` gives for each rank of that world its number in `comm`, `MPI.PROC_NULL` for the
    others. Messages in flight when a communicator is dropped without `close` stay in memory. `came_ns` is the time at
    which the last received message began to arrive, by the monotonic clock.

    Raises `CollectiveError` for invalid ranks, arrays and lengths, `Deadlock` after a wait of `timeout_seconds`.
    """

    def __init__(
        self, comm: "MPI.Intracomm", timeout_seconds: float = 60.0, *, numbers: Sequence[int] | None = None
    ) -> None:
        from mpi4py import MPI  # noqa: PLC0415 - a communicator exists, so it is loaded

        check_timeout(timeout_seconds)
        self._numbers = range(comm.size) if numbers is None else numbers
        self.rank = self._numbers.index(comm.rank)
        self.size = len(self._numbers)
        self._members = [rank for rank, number in enumerate(self._numbers) if number != MPI.PROC_NULL]
        vendor, version = MPI.get_vendor()
        self.library = f"{vendor} {'.'.join(map(str, version))}"
        self.timeout_seconds = timeout_seconds
        self.longer = "timeout_seconds"
        self.came_ns = 0
        self.machine = Machine([0] * comm.size, 0)
        self.board: Board | None = None
        self.transport: Transport | None = None
        self._line: Line | None = None
        self._lookout = Lookout()
        self._first = True
        self._channels = 0
        self._location = Location()
        self._comm = comm
        self._mail = MpiMail(comm, self._numbers)
        self._copies = Copies()
        self._shared, self._rests = NOTHING_SHARED, False
        self._outboxes: dict[int, Outbox] = {}
        self._inboxes: dict[int, Inbox] = {}
        self._unheard = set(self._members)
        self._unclaimed: Counter[int] = Counter()
        self._leaving = False
        self._pause: Callable[[], None] = os.sched_yield
        self._most_bytes = MOST_BYTES if MPI.Get_version() < (4, 0) else inf

    def take_buffers_from(self, allocate: Allocator) -> None:
        """Let all memory for later messages come from `allocate`, so that a ledger counts it."""
        self._copies = Copies(allocate)

    def use(self, transport: Transport) -> None:
        """Use this transport for later messages between ranks of a host.

        All ranks call this, each after it has received all messages sent to it. If memory cannot be shared, MPI
        carries these messages, and `refused` gives the reason.
        """
        if transport == self.transport:
            return
        self.transport = transport
        self._shared = share(self._comm, sleeps=self._rests) if transport == "shared" else NOTHING_SHARED
        self._outboxes = {self._numbers.index(each): box for each, box in self._shared.outboxes.items()}
        self._inboxes = {self._numbers.index(each): box for each, box in self._shared.inboxes.items()}

    @property
    def refused(self) -> str:
        """The reason why ranks of this host cannot share memory; empty if they can or need not."""
        return self._shared.refused

    def channel(
        self, timeout_seconds: float | None = None, ranks: Sequence[int] | None = None,
        transport: Transport | None = None,
    ) -> "MpiCommunicator":
        """Another communicator of the same ranks, with messages separate from those of this one.

        With `ranks` only these ranks call it and belong to it, under the numbers that they have here; `among` gives
        them numbers of their own. Its `timeout_seconds` and its `transport` are those of this one, unless given, and
        its memory for messages comes from the same allocator. It is not closed at exit.
        """
        made, numbers = (self._comm.Dup(), self._numbers) if ranks is None else self._of_some(ranks)
        other = MpiCommunicator(made, timeout_seconds or self.timeout_seconds, numbers=numbers)
        other.take_buffers_from(self._copies.allocate)
        other._pause, other._rests = self._pause, self._rests
        other._first = False
        other.use(transport or self.transport or "mpi")
        self._channels += 1
        if self.board is not None:
            other.board, other._line = self.board, self.board.line(self.rank, min(self._channels, CHANNELS - 1))
        return other

    def tagged(self, tag: int) -> "MpiCommunicator":
        """A communicator of the messages under `tag`; it receives no others.

        Their dtypes are not checked. Use it in a channel where all messages have a tag; MPI carries them.
        """
        found = copy(self)
        found._outboxes, found._inboxes, found._mail = {}, {}, self._mail.tagged(tag)
        return found

    def arrived(self, source: int | None) -> int | None:
        """The rank whose message is here: `source`, or any rank for None. None if there is no message; never waits."""
        return self._mail.arrived(source)

    def wait_for_any(self) -> int:
        """The rank whose message arrives first; waits for one."""
        self.note_location()
        self._poll(lambda: self.arrived(None) is not None, ANYBODY, self._pause)
        return self._mail.came_from()

    def _of_some(self, ranks: Sequence[int]) -> "tuple[MPI.Intracomm, list[int]]":
        """An MPI communicator of some ranks, and the number of each rank in it."""
        from mpi4py import MPI  # noqa: PLC0415 - a communicator exists, so it is loaded

        numbers = [MPI.PROC_NULL] * self.size
        for number, rank in enumerate(ranks):
            numbers[rank] = number
        group = self._comm.Get_group().Incl([self._numbers[rank] for rank in ranks])
        return self._comm.Create_group(group), numbers

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
        self._pause, self._rests = partial(time.sleep, REST), True

    def write_on(self, board: Board | None) -> None:
        """Write the state of this rank to `board`."""
        self.board = board
        self._line = None if board is None else board.line(self.rank, 0)

    def note_location(self) -> None:
        """Write the location of this thread to the board."""
        if self._line is not None and HERE.location is not self._location:
            self._location = HERE.location
            self._line.goes_to(self._location)

    def exchange(
        self, outgoing: Array, *, to: int, into: Array, source: int, reduce: Reduction | None = None
    ) -> None:
        """Send `outgoing` to `to` while receiving from `source` as `recv` does."""
        self._check_outgoing(outgoing, to)
        self._check_into(into, source)
        self.note_location()
        box = self._outboxes.get(to)
        if box is None:
            self._mail.post(outgoing, to, self._copies)
        elif not box.lend(outgoing, dtype_tag(outgoing.dtype), self._copies):
            self._exchange_lent(box, outgoing, into, source, reduce)
            return
        self._complete(into, source, reduce)

    def _exchange_lent(self, box: Outbox, outgoing: Array, into: Array, source: int, reduce: Reduction | None) -> None:
        """Receive while `outgoing` is sent; it is copied before anything is written into it, or when this call ends."""
        try:
            if np.may_share_memory(outgoing, into):
                box.settle(self._copies)
            self._complete(into, source, reduce)
            box.wait_for_room()
        finally:
            box.settle(self._copies)

    def send(self, outgoing: Array, *, to: int) -> None:
        """Send a copy of `outgoing` to rank `to`; never waits for it, whatever the length.

        Raises `Deadlock` if a rank of this host has been stopped for `timeout_seconds`: no wait here would notice it.
        """
        self._check_outgoing(outgoing, to)
        self.note_location()
        self._post(outgoing, to)
        if self.board is not None and time.monotonic() > self._lookout.due:
            stopped = self._lookout.look(self.board.processes, self.timeout_seconds)
            if stopped is not None:
                raise self._waited(f"for rank {stopped}, which is stopped", self.timeout_seconds)

    def recv(self, *, into: Array, source: int, reduce: Reduction | None = None) -> None:
        """Receive the next message of `source`: `into`, or `into = reduce(arrived, into)`."""
        self._check_into(into, source)
        self.note_location()
        self._complete(into, source, reduce)

    def close(self) -> None:
        """Wait, up to `timeout_seconds`, until all messages have been sent and every other rank closes too.

        Nothing may be sent afterwards. A rank that still computes after that time is not waited for.

        Raises `CollectiveError` naming a rank whose message was not received here, and `Deadlock` naming one that
        does not receive.
        """
        if not self._leaving:
            self._leaving = True
            if self.board is not None and self._first:
                self.board.finish(self.rank)
            for to in self._members:
                if to in self._outboxes:
                    self._outboxes[to].post(NOTHING, CLOSE_NOTIFY, self._copies)
                else:
                    self._mail.notify_close(to)
        deadline = time.monotonic() + self.timeout_seconds
        while not self._all_have_left() and time.monotonic() < deadline:
            self._pause()
        for source in self._members:
            unclaimed = self._unclaimed[source]
            if unclaimed:
                raise CollectiveError(
                    f"rank {self.rank} ended without receiving {unclaimed} message(s) from rank {source}: "
                    "every send needs its receive"
                )
        for to in self._members:
            waiting = self._waiting_bytes(to)
            if waiting is not None:
                raise self._waited(f"for rank {to} to receive {waiting} bytes", self.timeout_seconds)

    def _all_have_left(self) -> bool:
        """Whether all messages from here have been sent, and every rank's farewell has arrived."""
        push_all()
        for source in list(self._unheard):
            tag = self._inboxes[source].dropped() if source in self._inboxes else self._mail.dropped(source)
            if tag == CLOSE_NOTIFY:
                self._unheard.discard(source)
            elif tag is not None:
                self._unclaimed[source] += 1
        return not self._unheard and all(self._waiting_bytes(to) is None for to in self._members)

    def _waiting_bytes(self, to: int) -> int | None:
        """The length of the first unsent message to `to`; None if there is none."""
        return self._outboxes[to].waiting_bytes if to in self._outboxes else self._mail.waiting_bytes(to)

    def _post(self, outgoing: Array, to: int) -> None:
        if to in self._outboxes:
            self._outboxes[to].post(outgoing, dtype_tag(outgoing.dtype), self._copies)
        else:
            self._mail.post(outgoing, to, self._copies)

    def _complete(self, into: Array, source: int, reduce: Reduction | None) -> None:
        box = self._inboxes.get(source)
        if box is not None:
            self._take(box, into, source, reduce)
        elif reduce is None and into.flags.c_contiguous:
            self._receive(into.reshape(-1).view(np.uint8), source, into.dtype)
        else:
            memory = self._copies.take(into.nbytes)
            self._receive(memory[: into.nbytes], source, into.dtype)
            deliver(shaped(memory, into), into, reduce)
            self._copies.give(memory)

    def _take(self, box: Inbox, into: Array, source: int, reduce: Reduction | None) -> None:
        """Receive the next message of `source` from its box."""
        found = box.look() or self._await(source, box.look)
        self.came_ns = time.monotonic_ns()
        if found & ~LENT != header(into.nbytes, dtype_tag(into.dtype)):
            sent_bytes, tag = read_header(found)
            arrived = box.take_bytes(sent_bytes, partial(self._await, source))
            self._refuse(arrived, tag, source, into.nbytes, into.dtype)
        if not box.take_whole(into, reduce):
            box.take(into, reduce, self._copies, partial(self._await, source))

    def _await(self, source: int, look: Callable[[], Result | None]) -> Result:
        """Wait until a poll of a box of `source` succeeds, and return its result."""
        for _ in range(LOOKS):
            found = look()
            if found:
                return found
        return self._poll(look, source, Patience(self._shared.bell))

    def _receive(self, landing: Bytes, source: int, dtype: np.dtype[Any]) -> None:
        """Fill `landing` with the next message of `source`, which MPI carries."""
        message = self._poll(partial(self._mail.look, source), source, self._pause)
        self.came_ns = time.monotonic_ns()
        sent_bytes, tag = self._mail.found()
        fits = sent_bytes == landing.nbytes
        arriving = landing if fits else np.empty(sent_bytes, np.uint8)
        request = message.Irecv(arriving)
        self._poll(request.Test, source, os.sched_yield)
        if not fits or tag != tag_for(dtype, self._mail.tag):
            self._refuse(arriving, tag, source, landing.nbytes, dtype)

    def _refuse(self, arrived: Bytes, tag: int, source: int, due_bytes: int, dtype: np.dtype[Any]) -> NoReturn:
        """Raise the error for a message that is not the expected one."""
        if tag == CLOSE_NOTIFY:
            self._unheard.discard(source)
            raise Deadlock(
                f"rank {self.rank} waits for a message from rank {source}, which has finished{spaced(HERE.location)}")
        other = "" if tag == tag_for(dtype, self._mail.tag) else " of a different dtype"
        raise LengthError(
            f"rank {source} sent {arrived.nbytes} bytes{other} to rank {self.rank}, which receives them "
            f"into {due_bytes} bytes of {dtype}{spaced(HERE.location)}: both sides must name the same length and dtype",
            arrived,
        )

    def _poll(self, done: Callable[[], Result | None], source: int, pause: Callable[[], None]) -> Result:
        """Wait until `done` returns a true value, and return it; meanwhile the board shows that this rank waits."""
        result = done()
        if result:
            return result
        wait = BoundedWait(self.board, self.timeout_seconds)
        if self._line is not None:
            self._line.waits(source)
        while not result:
            if wait.is_over():
                raise self._waited(f"for a message from {named(source)}", wait.seconds)
            pause()
            result = done()
            if not result:
                self._move_on()
        if self._line is not None:
            self._line.goes_on()
        return result

    def _move_on(self) -> None:
        """Make progress with all messages of this process, in all channels: in boxes and in MPI."""
        if PENDING:
            push_all()
        if self._inboxes and is_unfinished():
            self._mail.go_on()

    def _waited(self, awaited: str, seconds: float) -> Deadlock:
        everyone = spaced(HERE.location) if self.board is None else explained(self.board.what_all_do())
        return Deadlock(
            f"rank {self.rank} waited {seconds:g} s {awaited}{everyone}; every send needs its receive, "
            f"and a slow rank a longer {self.longer}"
        )

    def _check_outgoing(self, outgoing: Array, to: int) -> None:
        self._check(outgoing, "outgoing", to, "to")
        if outgoing.nbytes > self._most_bytes:
            raise CollectiveError(
                f"outgoing has {outgoing.nbytes:,} bytes, and over {self.library} a message has at most "
                f"{self._most_bytes:,}: send it in pieces; a run does with parallel.bucket_mb, or smaller units")

    def _check_into(self, into: Array, source: int) -> None:
        self._check(into, "into", source, "source")
        if not into.flags.writeable:
            check_into(into)

    def _check(self, array: Array, role: str, rank: int, side: str) -> None:
        if get_ident() != self.user:
            self.claim()
        if self._leaving:
            raise CollectiveError(
                f"rank {self.rank} has closed this communicator: close it after the last message")
        if not (type(rank) is int and 0 <= rank < self.size):
            check_rank(rank, self.size, side)
        if type(array) is not np.ndarray or array.dtype.hasobject:
            check_array(array, role)
