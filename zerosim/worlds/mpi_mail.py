"""Messages that MPI carries: between hosts, to oneself, under tags, and all messages if no memory is shared.

- `post` copies a message into its own memory and leaves the rest to MPI.
- A message is matched (`Improbe`) before it is received, so that its length is known: MPI does not define what happens
  to a message that is longer than its memory, and Open MPI corrupts the heap.
- A message is raw bytes under a tag that encodes their dtype.
"""

import zlib
from collections import deque
from collections.abc import Sequence
from copy import copy
from functools import cache
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from zerosim.allocation import Array
from zerosim.errors import CollectiveError
from zerosim.worlds.copies import Bytes, Copies, shaped
from zerosim.worlds.delivery import refuse_mask

if TYPE_CHECKING:
    from mpi4py import MPI

CLOSE_NOTIFY = 0x7FFF
"""The tag of the last message between two ranks; the largest that every MPI library has."""
UNUSED = CLOSE_NOTIFY - 1
"""A tag that no message has."""
NOTHING = np.empty(0, np.uint8)
TAGGED = CLOSE_NOTIFY + 1
"""MPI's tag of messages with tag 0. Tags given by a program do not encode the dtype."""
UNFINISHED: list[list[deque["Departure"]]] = []
"""The messages in flight of every communicator of this process: MPI reads their memory, so they must stay alive."""


class Departure(NamedTuple):
    """A message in flight: MPI reads `memory` until `request` is complete."""

    request: "MPI.Request"
    memory: Bytes
    sent_bytes: int
    copies: Copies

    def give_back(self) -> None:
        """Return the memory for reuse."""
        self.copies.give(self.memory)


class MpiMail:
    """The messages of one rank in `comm`; `numbers` gives each rank's number there."""

    def __init__(self, comm: "MPI.Intracomm", numbers: Sequence[int]) -> None:
        from mpi4py import MPI  # noqa: PLC0415 - a communicator exists, so it is loaded

        self._comm, self._numbers = comm, numbers
        self._status = MPI.Status()
        self.tag, self._any_source = MPI.ANY_TAG, MPI.ANY_SOURCE
        self._departures: list[deque[Departure]] = [deque() for _ in numbers]
        self._unclaimed: list[tuple[object, Bytes]] = []
        UNFINISHED.append(self._departures)

    def tagged(self, tag: int) -> "MpiMail":
        """The messages under `tag` only."""
        found = copy(self)
        found.tag, found._status = tag_of(tag, self._comm), type(self._status)()
        return found

    def post(self, outgoing: Array, to: int, copies: Copies) -> None:
        """Send a copy of `outgoing`, in memory from `copies`."""
        departures = self._departures[to]
        while departures and departures[0].request.Test():
            departures.popleft().give_back()
        memory = copies.take(outgoing.nbytes)
        np.copyto(shaped(memory, outgoing), outgoing)
        request = self._comm.Isend(memory[: outgoing.nbytes], self._numbers[to], tag_for(outgoing.dtype, self.tag))
        departures.append(Departure(request, memory, outgoing.nbytes, copies))

    def notify_close(self, to: int) -> None:
        """Send the last message."""
        self._comm.Isend(NOTHING, self._numbers[to], CLOSE_NOTIFY).Free()

    def waiting_bytes(self, to: int) -> int | None:
        """The length of the first unsent message to `to`; None if there is none."""
        departures = self._departures[to]
        while departures and departures[0].request.Test():
            departures.popleft()
        return departures[0].sent_bytes if departures else None

    def arrived(self, source: int | None) -> int | None:
        """The rank whose message is here: `source`, or any rank for None. None if there is no message."""
        number = self._any_source if source is None else self._numbers[source]
        here = self._comm.Iprobe(number, self.tag, self._status)
        return self._numbers.index(self._status.Get_source()) if here else None

    def came_from(self) -> int:
        """The rank of the message that `arrived` has found."""
        return self._numbers.index(self._status.Get_source())

    def look(self, source: int) -> "MPI.Message | None":
        """The next message of `source`, if it is here: matched, and still to be received."""
        return self._comm.Improbe(self._numbers[source], self.tag, status=self._status)

    def found(self) -> tuple[int, int]:
        """The length and the tag of the message that `look` has found."""
        return self._status.Get_count(), self._status.Get_tag()

    def dropped(self, source: int) -> int | None:
        """The tag of a message that is here and is discarded; None if there is none."""
        message = self._comm.Improbe(self._numbers[source], status=self._status)
        if message is None:
            return None
        landing = np.empty(self._status.Get_count(), np.uint8)
        self._unclaimed.append((message.Irecv(landing), landing))
        return self._status.Get_tag()

    def go_on(self) -> None:
        """Let MPI make progress with the messages of all communicators of this process.

        It probes for a message that never arrives: if MPICH finds one, it returns and sends nothing.
        """
        self._comm.Iprobe(self._any_source, UNUSED)


def is_unfinished() -> bool:
    """Whether this process may have messages in flight with which MPI makes progress only when it is called."""
    return any(map(any, UNFINISHED))


@cache
def dtype_tag(dtype: np.dtype[Any]) -> int:
    """The tag of messages of this dtype, the same in every process; two dtypes nearly never share one."""
    return zlib.crc32(spelled(dtype).encode()) % UNUSED


def tag_of(tag: int, comm: "MPI.Intracomm") -> int:
    """MPI's tag of messages that a program sends in `comm` under `tag`; raises `CollectiveError` if MPI has none."""
    from mpi4py import MPI  # noqa: PLC0415 - a communicator exists, so it is loaded

    most = int(comm.Get_attr(MPI.TAG_UB) or TAGGED) - TAGGED
    if not 0 <= tag <= most:
        raise CollectiveError(f"tag={tag}: tags are whole numbers from 0 to {most:,} with this MPI library")
    return TAGGED + tag


def tag_for(dtype: np.dtype[Any], tag: int) -> int:
    """MPI's tag of a message: `tag` if a program gave it one, else the tag of its dtype."""
    return tag if tag >= TAGGED else dtype_tag(dtype)


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
    if type(array) is np.ndarray and not array.dtype.hasobject:
        return
    if not isinstance(array, np.ndarray):
        raise CollectiveError(
            f"{role} is of type {type(array).__name__}; under MPI a message is a NumPy array"
        )
    refuse_mask(array, role)
    if array.dtype.hasobject:
        raise CollectiveError(
            f"{role} has dtype {array.dtype}; under MPI a message is of fixed-size elements, Python objects travel in "
            "the local world only"
        )
