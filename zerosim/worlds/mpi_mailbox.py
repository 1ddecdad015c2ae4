"""Messages between the ranks of an MPI communicator, as raw bytes, so every NumPy dtype can be sent.

- A message is copied, and the rest is left to MPI. Buffered semantics mean that a program that works in the local world
  works here at every message size.
- It is matched (`Improbe`) before it is received, so that one of a different length is an error that names both sizes:
  MPI does not define what happens to it, and Open MPI corrupts the heap. Its tag encodes its dtype.
- Waiting polls and yields the processor. Every wait ends after `timeout_seconds`, with the name of the rank that was
  waited for.
"""

import os
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from zerosim.core.allocation import Array
from zerosim.core.comm import Reduction
from zerosim.core.errors import CollectiveError, Deadlock
from zerosim.worlds.copies import CLOSE_NOTIFY, Bytes, Copies, dtype_tag, shaped
from zerosim.worlds.delivery import deliver
from zerosim.worlds.here import HERE, spaced
from zerosim.worlds.world import Result

if TYPE_CHECKING:
    from mpi4py import MPI

SMALL_BYTES = 1 << 14
"""The most bytes of a message whose copy is a Python object; copies of longer ones are kept and reused."""
TAGGED = CLOSE_NOTIFY + 1
"""MPI's tag of messages with tag 0. Tags given by a program do not encode the dtype."""
NOTHING = np.empty(0, np.uint8)
UNFINISHED: list[list[deque["Departure"]]] = []
"""The messages in flight of every communicator of this process: MPI reads their memory, so they must stay alive."""


class Departure(NamedTuple):
    """A message in flight: MPI reads `memory` until `request` is complete."""

    request: "MPI.Request"
    memory: bytes | Bytes
    sent_bytes: int
    copies: "Copies"


class Mailbox:
    """What one rank sends and receives through `comm`: `numbers` has the number of each rank in it.

    `came_ns` is the time at which the last received message was matched, by the monotonic clock.
    """

    def __init__(self, comm: "MPI.Intracomm", timeout_seconds: float, numbers: Sequence[int]) -> None:
        from mpi4py import MPI  # noqa: PLC0415 - a communicator exists, so it is loaded

        self.numbers, self.rank, self.size = numbers, numbers.index(comm.rank), len(numbers)
        self.timeout_seconds, self.came_ns = timeout_seconds, 0
        self._comm, self._status, self._tag = comm, MPI.Status(), MPI.ANY_TAG
        self._members = [rank for rank, number in enumerate(numbers) if number != MPI.PROC_NULL]
        self._departures: list[deque[Departure]] = [deque() for _ in numbers]
        UNFINISHED.append(self._departures)
        self.copies = Copies()
        self._unheard, self._unclaimed = set(self._members), Counter[int]()
        self._dropped: list[tuple[object, Bytes]] = []

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
