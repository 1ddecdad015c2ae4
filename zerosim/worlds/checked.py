"""Messages with a checksum and a number, so that one that was changed, lost or sent twice is noticed.

    message    the bytes of the array, then 16 more: its number among those from this rank to that one, its dtype, and
               the CRC-32 (as in IEEE 802.3) of all these

The trailer is part of the same message, so the count of messages stays, and the count of bytes is still the
payload's. The number tells a lost message from a doubled one, even where the next has another length. A CRC finds
every flipped bit and every burst of up to 32 bits. It cannot find what happens above it, in memory; that is the
verdict's task.

Checksums are off by default: a step takes 1.22 to 1.42 times as long with them, nearly all of it for the CRC.
"""

import struct
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from zerosim.allocation import Array
from zerosim.comm import Communicator, Reduction, check_rank
from zerosim.errors import CollectiveError, LengthError, MessageError
from zerosim.worlds.delivery import check_into, check_payload, deliver
from zerosim.worlds.here import HERE, spaced

TRAILER = struct.Struct("<QII")
CHECKSUM_BYTES = 4
Bytes = npt.NDArray[np.uint8]


class Checked:
    """A communicator of NumPy arrays whose messages are checked: all ranks must have one, for the same messages.

    It keeps memory for the longest message each way, which is in no ledger.

    Raises `MessageError` at the receiver of a message that is not the one that was sent, or not the next.

    >>> from zerosim.worlds.local import spawn
    >>> def program(comm):
    ...     arrived, checked = np.empty(2, np.float32), Checked(comm)
    ...     checked.send(np.ones(2, np.float32), to=0)
    ...     comm.send(np.zeros(24, np.uint8), to=0)
    ...     checked.recv(into=arrived, source=0)
    ...     try:
    ...         checked.recv(into=arrived, source=0)
    ...     except MessageError as error:
    ...         print(error)
    >>> spawn(program, ranks=1)
    rank 0: message 2 from rank 0 came with checksum 0x00000000, and its bytes have 0x0fd59b8d: they were changed on \
the way
    [None]
    """

    def __init__(self, comm: Communicator) -> None:
        self.rank = comm.rank
        self.size = comm.size
        self._comm = comm
        self._sent: Counter[int] = Counter()
        self._came: Counter[int] = Counter()
        self._outgoing = Space()
        self._landing = Space()

    @property
    def came_ns(self) -> int:
        """When the last wait ended, by the communicator beneath."""
        return int(getattr(self._comm, "came_ns", 0))

    def exchange(
        self, outgoing: Array, *, to: int, into: Array, source: int, reduce: Reduction | None = None
    ) -> None:
        check_rank(source, self.size, "source")
        check_payload(into, "into")
        check_into(into)
        landing = self._landing.of(into)
        with self._due(source):
            self._comm.exchange(self._sealed(outgoing, to), to=to, into=landing, source=source)
        self._deliver(landing, into, source, reduce)

    def send(self, outgoing: Array, *, to: int) -> None:
        self._comm.send(self._sealed(outgoing, to), to=to)

    def recv(self, *, into: Array, source: int, reduce: Reduction | None = None) -> None:
        check_rank(source, self.size, "source")
        check_payload(into, "into")
        check_into(into)
        landing = self._landing.of(into)
        with self._due(source):
            self._comm.recv(into=landing, source=source)
        self._deliver(landing, into, source, reduce)

    def _sealed(self, outgoing: Array, to: int) -> Bytes:
        """A copy of a message, with what is looked at behind it."""
        check_rank(to, self.size, "to")
        check_payload(outgoing, "outgoing")
        self._sent[to] += 1
        sealed = self._outgoing.of(outgoing)
        sealed[: outgoing.nbytes].view(outgoing.dtype).reshape(outgoing.shape)[...] = outgoing
        what = self._sent[to], dtype_tag(outgoing.dtype)
        TRAILER.pack_into(sealed.data, outgoing.nbytes, *what, 0)
        TRAILER.pack_into(sealed.data, outgoing.nbytes, *what, zlib.crc32(sealed[:-CHECKSUM_BYTES].data))
        return sealed

    @contextmanager
    def _due(self, source: int) -> Iterator[None]:
        """A context in which a message of `source` arrives; one of another length may not be the one that is due."""
        self._came[source] += 1
        try:
            yield
        except LengthError as error:
            if error.arrived.dtype == np.uint8 and error.arrived.nbytes >= TRAILER.size:
                self._check_number(TRAILER.unpack(error.arrived[-TRAILER.size :].tobytes())[0], source)
            raise

    def _deliver(self, landing: Bytes, into: Array, source: int, reduce: Reduction | None) -> None:
        number, dtype, brought = TRAILER.unpack_from(landing.data, into.nbytes)
        found = zlib.crc32(landing[:-CHECKSUM_BYTES].data)
        if brought != found:
            raise MessageError(
                f"{self._due_words(source)} came with checksum {brought:#010x}, and its bytes have {found:#010x}: they "
                "were changed on the way"
            )
        self._check_number(number, source)
        if dtype != dtype_tag(into.dtype):
            raise CollectiveError(
                f"rank {source} sent another dtype to rank {self.rank}, which receives {into.size} × {into.dtype}"
                f"{spaced(HERE.location)}: both sides must name the same length and dtype"
            )
        deliver(landing[: into.nbytes].view(into.dtype).reshape(into.shape), into, reduce)

    def _check_number(self, number: int, source: int) -> None:
        if number > self._came[source]:
            raise MessageError(f"{self._due_words(source)} was lost: number {number} came in its place")
        if number < self._came[source]:
            raise MessageError(f"{self._due_words(source)} was due, and number {number} came once more")

    def _due_words(self, source: int) -> str:
        return f"rank {self.rank}{spaced(HERE.location)}: message {self._came[source]} from rank {source}"


class Space:
    """Memory for one message at a time, with what is looked at behind it: the page faults of fresh memory cost more."""

    def __init__(self) -> None:
        self._memory: Bytes = np.empty(0, np.uint8)

    def of(self, array: Array) -> Bytes:
        """Enough for a message like `array`."""
        wanted = array.nbytes + TRAILER.size
        if self._memory.nbytes < wanted:
            self._memory = np.empty(wanted, np.uint8)
        return self._memory[:wanted]


@cache
def dtype_tag(dtype: np.dtype[Any]) -> int:
    """A tag for a dtype, the same in every process."""
    return zlib.crc32(str(dtype).encode())
