"""Messages with a checksum and a number, so that a changed, lost or duplicated message is noticed.

    message    the bytes of the array, then 16 more: its number among the messages from this rank to that one, its
               dtype, and the CRC-32 (as in IEEE 802.3) of all these

The trailer is part of the same message, so the count of messages is unchanged, and the count of bytes is still the
payload's. The number distinguishes a lost message from a duplicated one, even if the next has a different length. A CRC
finds every flipped bit and every burst of up to 32 bits. It cannot find errors outside messages, in memory; the
verdict does.

Checksums are off by default: a step takes 1.22 to 1.42 times as long with them, nearly all of it for the CRC.
"""

import struct
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from zerosim.core.allocation import Array
from zerosim.core.comm import Communicator, Reduction, SendsFirst, check_rank
from zerosim.core.errors import CollectiveError, LengthError, MessageError
from zerosim.worlds.copies import Bytes, Copies, shaped
from zerosim.worlds.delivery import check_into, check_payload, deliver
from zerosim.worlds.here import HERE, spaced
from zerosim.worlds.mpi_communicator import dtype_tag

TRAILER = struct.Struct("<QII")
CHECKSUM_BYTES = 4


class Checked(SendsFirst):
    """A communicator of NumPy arrays whose messages are checked. All ranks must use one, for the same messages.

    It keeps memory for messages, which is in no ledger.

    Raises `MessageError` at the receiver of a message that differs from the one sent, or is not the next.

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
    rank 0: message 2 from rank 0 came with checksum 0x00000000, but its bytes have 0x0fd59b8d: they were changed in \
transit
    [None]
    """

    def __init__(self, comm: Communicator) -> None:
        self.rank = comm.rank
        self.size = comm.size
        self._comm = comm
        self._sent: Counter[int] = Counter()
        self._came: Counter[int] = Counter()
        self._copies = Copies()

    @property
    def came_ns(self) -> int:
        """The time at which the last wait ended, by the underlying communicator."""
        return int(getattr(self._comm, "came_ns", 0))

    def send(self, outgoing: Array, *, to: int) -> None:
        check_rank(to, self.size, "to")
        check_payload(outgoing, "outgoing")
        with self._room(outgoing) as sealed:
            self._seal(outgoing, to, sealed)
            self._comm.send(sealed, to=to)

    def recv(self, *, into: Array, source: int, reduce: Reduction | None = None) -> None:
        check_rank(source, self.size, "source")
        check_payload(into, "into")
        check_into(into)
        with self._room(into) as landing:
            with self._due(source):
                self._comm.recv(into=landing, source=source)
            self._deliver(landing, into, source, reduce)

    @contextmanager
    def _room(self, like: Array) -> Iterator[Bytes]:
        """A context with memory for a message and its trailer."""
        wanted = like.nbytes + TRAILER.size
        memory = self._copies.take(wanted)
        yield memory[:wanted]
        self._copies.give(memory)

    def _seal(self, outgoing: Array, to: int, sealed: Bytes) -> None:
        """Write a copy of a message, with its trailer, into `sealed`."""
        self._sent[to] += 1
        shaped(sealed, outgoing)[...] = outgoing
        what = self._sent[to], dtype_tag(outgoing.dtype)
        TRAILER.pack_into(sealed.data, outgoing.nbytes, *what, 0)
        TRAILER.pack_into(sealed.data, outgoing.nbytes, *what, zlib.crc32(sealed[:-CHECKSUM_BYTES].data))

    @contextmanager
    def _due(self, source: int) -> Iterator[None]:
        """A context that receives a message of `source`; a message of a different length may have the wrong number."""
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
                f"{self._due_words(source)} came with checksum {brought:#010x}, but its bytes have {found:#010x}: they "
                "were changed in transit"
            )
        self._check_number(number, source)
        if dtype != dtype_tag(into.dtype):
            raise CollectiveError(
                f"rank {source} sent a different dtype to rank {self.rank}, which receives {into.size} × {into.dtype}"
                f"{spaced(HERE.location)}: both sides must name the same length and dtype"
            )
        deliver(shaped(landing, into), into, reduce)

    def _check_number(self, number: int, source: int) -> None:
        if number > self._came[source]:
            raise MessageError(f"{self._due_words(source)} was lost: message {number} arrived instead")
        if number < self._came[source]:
            raise MessageError(f"{self._due_words(source)} was expected; message {number} arrived again")

    def _due_words(self, source: int) -> str:
        return f"rank {self.rank}{spaced(HERE.location)}: message {self._came[source]} from rank {source}"
