"""A rank of the MPI world: its mailbox, in which wrong arrays and ranks are refused.

A second channel is a duplicate of the communicator, served by one thread. Messages between two ranks arrive in order,
so two collectives at once over one channel would receive each other's messages.
"""

import os
import time
from collections.abc import Callable, Sequence
from copy import copy
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from zerosim.core.allocation import Allocator, Array
from zerosim.core.comm import Exchange, Reduction, check_rank
from zerosim.core.errors import CollectiveError
from zerosim.worlds.copies import CLOSE_NOTIFY, Copies
from zerosim.worlds.delivery import check_into, refuse_mask
from zerosim.worlds.mpi_mailbox import NOTHING, TAGGED, Mailbox
from zerosim.worlds.mpi_start import Machine

if TYPE_CHECKING:
    from mpi4py import MPI


class MpiCommunicator(Mailbox):
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
        super().__init__(comm, timeout_seconds, range(comm.size) if numbers is None else numbers)
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
        """The MPI library's own collectives between these ranks, from one array of numbers into another; maxima."""
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
