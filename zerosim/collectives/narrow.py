"""Any reduce-scatter with quantised messages: the code of the collective over a communicator that encodes messages.

    wire       a pair of functions, encode and decode, see `core/wires.py`
    narrowed   a communicator over which a message travels as bytes: scales, then codes

A message is decoded before it is added, and a sum is encoded again before it is sent. The collective therefore decides
how often a sum is quantised: N − 1 times in a ring, where each partial sum is sent on; once in `direct`, where every
contribution goes straight to the owner of its chunk. An owner's contribution to its own chunk is never quantised.

Blocks of a scale start at the first element of a message. A collective that sends several chunks in one message has
other blocks, and so different bits, than one that sends them separately: orders of addition that declare `arrives`
refer to chunks that are sent one by one.

Do not use it for an all-gather: decoding a value that was encoded twice need not give the same number, so ranks would
differ. `stages/gathering.py` gathers the encoded bytes instead and decodes them once.

Source: Wang et al., "ZeRO++" (2023), section 3.3, which names the error of a quantised ring as the reason for qgZ.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from zerosim.core.allocation import Allocator, Array
from zerosim.core.comm import Communicator, Exchange, ExchangesTogether, Payload, Reduction


class WireFormat(Protocol):
    """A wire format, such as `core/wires.Format`."""

    def encoded_bytes(self, count: int) -> int: ...
    def encode(self, x: Any, out: Any) -> None: ...
    def decode(self, coded: Any, out: Any) -> None: ...


class Narrowed(ExchangesTogether):
    """A communicator over `comm` whose messages are encoded.

    >>> from zerosim.core.allocation import allocate
    >>> from zerosim.core.wires import Format
    >>> from zerosim.worlds.local import spawn
    >>> def program(comm):
    ...     into = np.zeros(2, np.float32)
    ...     narrow = Narrowed(comm, Format("int4", block=0), allocate)
    ...     narrow.exchange(np.float32([0.1, 7]), to=0, into=into, source=0)
    ...     return into.tolist()
    >>> spawn(program, ranks=1)
    [[0.0, 7.0]]
    """

    def __init__(self, comm: Communicator, wire: WireFormat, allocate: Allocator) -> None:
        self.rank = comm.rank
        self.size = comm.size
        self._comm = comm
        self._wire = wire
        self._allocate = allocate

    def exchange_all(self, exchanges: Sequence[Exchange]) -> None:
        coming = [self._buffer(exchange.into) for exchange in exchanges]
        self._comm.exchange_all([
            Exchange(self._encoded(exchange.outgoing), exchange.to, into, exchange.source)
            for exchange, into in zip(exchanges, coming, strict=True)])
        for exchange in exchanges:
            self._take(coming.pop(0), exchange.into, exchange.reduce)

    def send(self, outgoing: Payload, *, to: int) -> None:
        self._comm.send(self._encoded(outgoing), to=to)

    def recv(self, *, into: Payload, source: int, reduce: Reduction | None = None) -> None:
        coming = self._buffer(into)
        self._comm.recv(into=coming, source=source)
        self._take(coming, into, reduce)

    def _buffer(self, like: Payload) -> Array:
        """The buffer for a message of as many numbers as `like` has."""
        return self._allocate(self._wire.encoded_bytes(len(like)), np.uint8, kind="buffers", owner="codes")

    def _encoded(self, outgoing: Payload) -> Array:
        coded = self._buffer(outgoing)
        self._wire.encode(outgoing, coded)
        return coded

    def _take(self, coded: Array, into: Payload, reduce: Reduction | None) -> None:
        if reduce is None:
            self._wire.decode(coded, into)
            return
        arrived = self._allocate(len(into), into.dtype, kind="buffers", owner="codes")
        self._wire.decode(coded, arrived)
        into[:] = reduce(arrived, into)


@dataclass(frozen=True)
class OnNarrowWires:
    """A reduce-scatter over communicators whose messages are encoded."""

    collective: Callable[..., None]
    wire: WireFormat
    allocate: Allocator

    def __call__(self, comm: Communicator, chunks: Sequence[Payload]) -> None:
        self.collective(Narrowed(comm, self.wire, self.allocate), chunks)

    def encoding_bytes(self, chunk: Payload) -> int:
        """The bytes read and written to encode a chunk: its numbers twice, once for scales and once for codes."""
        return 2 * int(chunk.nbytes) + self.wire.encoded_bytes(len(chunk))

    def take_buffers(self, chunk: Payload) -> None:
        """Allocate and free the buffers of one exchange of a chunk, for the ledger of a run that exchanges none."""
        sizes = [self.wire.encoded_bytes(len(chunk))] * 2
        coded = [self.allocate(size, np.uint8, kind="buffers", owner="codes") for size in sizes]
        coded.pop()
        coded.append(self.allocate(len(chunk), chunk.dtype, kind="buffers", owner="codes"))
