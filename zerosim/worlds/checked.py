"""Messages that bring their checksum and their number, so that one that was changed, lost or sent twice is noticed.

    message    the bytes of the array, then 12 more: its number among those from this rank to that one, and the CRC-32
               (as in IEEE 802.3) of the bytes, the number and the dtype
"""

import struct
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from zerosim.allocation import Array
from zerosim.comm import Communicator, Reduction
from zerosim.errors import CollectiveError, MessageError
from zerosim.worlds.delivery import deliver
from zerosim.worlds.here import HERE, spaced

TRAILER = struct.Struct("<QI")
Bytes = npt.NDArray[np.uint8]


class Checked:
    """A communicator of NumPy arrays whose messages are checked: all ranks must have one, for the same messages.

    Raises `MessageError` at the receiver of a message that is not the one that was sent, or not the next.

    >>> from zerosim.worlds.local import spawn
    >>> def program(comm):
    ...     arrived, checked = np.empty(2, np.float32), Checked(comm)
    ...     checked.send(np.ones(2, np.float32), to=0)
    ...     comm.send(np.zeros(20, np.uint8), to=0)
    ...     checked.recv(into=arrived, source=0)
    ...     try:
    ...         checked.recv(into=arrived, source=0)
    ...     except MessageError as error:
    ...         print(error)
    >>> spawn(program, ranks=1)
    rank 0: message 2 from rank 0 came with checksum 0x00000000, and its bytes have 0x7e446101: they were changed on \
the way
    [None]
    """

    def __init__(self, comm: Communicator) -> None:
        self.rank = comm.rank
        self.size = comm.size
        self._comm = comm
        self._sent: Counter[int] = Counter()
        self._came: Counter[int] = Counter()

    @property
    def came_ns(self) -> int:
        """As the communicator beneath has it."""
        return int(getattr(self._comm, "came_ns", 0))

    def exchange(
        self, outgoing: Array, *, to: int, into: Array, source: int, reduce: Reduction | None = None
    ) -> None:
        landing = space_for(into)
        with self._due(source):
            self._comm.exchange(self._sealed(outgoing, to), to=to, into=landing, source=source)
        self._deliver(landing, into, source, reduce)

    def send(self, outgoing: Array, *, to: int) -> None:
        self._comm.send(self._sealed(outgoing, to), to=to)

    def recv(self, *, into: Array, source: int, reduce: Reduction | None = None) -> None:
        landing = space_for(into)
        with self._due(source):
            self._comm.recv(into=landing, source=source)
        self._deliver(landing, into, source, reduce)

    def _sealed(self, outgoing: Array, to: int) -> Bytes:
        """A copy of a message, with what is looked at behind it."""
        self._sent[to] += 1
        sealed = space_for(outgoing)
        sealed[: outgoing.nbytes].view(outgoing.dtype).reshape(outgoing.shape)[...] = outgoing
        number = self._sent[to]
        TRAILER.pack_into(sealed.data, outgoing.nbytes, number, checksum(sealed, number, outgoing.dtype))
        return sealed

    @contextmanager
    def _due(self, source: int) -> Iterator[None]:
        """Within, a message of `source` comes; one of another length is not the one that is due."""
        self._came[source] += 1
        try:
            yield
        except CollectiveError as error:
            raise MessageError(
                f"{error}, each with {TRAILER.size} bytes of number and checksum, in message {self._came[source]}; or "
                "one before it was lost or came twice"
            ) from None

    def _deliver(self, landing: Bytes, into: Array, source: int, reduce: Reduction | None) -> None:
        due = self._came[source]
        number, brought = TRAILER.unpack_from(landing.data, into.nbytes)
        found = checksum(landing, number, into.dtype)
        if brought != found:
            raise MessageError(
                f"{self._due_words(source)} came with checksum {brought:#010x}, and its bytes have {found:#010x}: they "
                "were changed on the way"
            )
        if number != due:
            why = f"number {number} came twice" if number < due else f"{number - due} of them did not come"
            raise MessageError(f"{self._due_words(source)} was due, and number {number} came: {why}")
        deliver(landing[: into.nbytes].view(into.dtype).reshape(into.shape), into, reduce)

    def _due_words(self, source: int) -> str:
        return f"rank {self.rank}{spaced(HERE.place)}: message {self._came[source]} from rank {source}"


def space_for(array: Array) -> Bytes:
    """Memory for a message with what is looked at behind it."""
    return np.empty(array.nbytes + TRAILER.size, np.uint8)


def checksum(message: Bytes, number: int, dtype: np.dtype[Any]) -> int:
    """Of the bytes before the trailer, of its number, and of the dtype."""
    return zlib.crc32(f"{number} {dtype}".encode(), zlib.crc32(message[: -TRAILER.size].data))
