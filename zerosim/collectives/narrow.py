"""Any reduce-scatter on narrow wires: the collective's own text over a communicator that encodes what it sends.

    wire       a pair of functions, encode and decode, see `numerics.wires`
    narrowed   a communicator over which a message travels as bytes: scales, then codes

What arrives is decoded before it is added, and what leaves next is encoded anew. So the text decides how often a sum is
quantised: N − 1 times in a ring, where each partial sum travels on; once in `direct`, where every contribution goes
straight to the owner of its chunk. What an owner brings to its own chunk never travels and stays as it is.

Blocks begin with a message. A collective that sends several chunks in one message has other blocks than one that sends
them apart, and so other bits: orders of addition that declare `arrives` speak of chunks that travel one by one.

Not for an all-gather: decoding what was encoded twice need not give the same numbers, so ranks would differ. There the
bytes themselves are gathered, and decoded once (`stages/gathering.py`).

With error feedback a rank adds to what it encodes what its earlier encoding of the same chunk has lost, and keeps the
new loss: what it was to send, minus what arrives. Where that is not finite it keeps 0.

Sources: Wang et al., "ZeRO++" (2023), section 3.3, which names the error of a quantised ring as the reason for qgZ; for
error feedback see `stages/feedback.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from zerosim.allocation import Allocator, Array
from zerosim.comm import Communicator, Payload, Reduction
from zerosim.sharding import memory_of, split


class Narrow(Protocol):
    """How numbers travel in fewer bits."""

    def encoded_bytes(self, count: int) -> int: ...
    def encode(self, x: Any, out: Any) -> None: ...
    def decode(self, coded: Any, out: Any) -> None: ...


class Narrowed:
    """A communicator over `comm` whose messages are encoded.

    >>> from zerosim.allocation import allocate
    >>> from zerosim.numerics.wires import wire
    >>> from zerosim.worlds.local import spawn
    >>> def program(comm):
    ...     into = np.zeros(2, np.float32)
    ...     narrow = Narrowed(comm, wire("int4", block=0), allocate)
    ...     narrow.exchange(np.float32([0.1, 7]), to=0, into=into, source=0)
    ...     return into.tolist()
    >>> spawn(program, ranks=1)
    [[0.0, 7.0]]
    """

    def __init__(self, comm: Communicator, wire: Narrow, allocate: Allocator) -> None:
        self.rank = comm.rank
        self.size = comm.size
        self._comm = comm
        self._wire = wire
        self._allocate = allocate

    def exchange(
        self, outgoing: Payload, *, to: int, into: Payload, source: int, reduce: Reduction | None = None
    ) -> None:
        coded = self._encoded(outgoing)
        coming = self._room(into)
        self._comm.exchange(coded, to=to, into=coming, source=source)
        del coded
        self._take(coming, into, reduce)

    def send(self, outgoing: Payload, *, to: int) -> None:
        self._comm.send(self._encoded(outgoing), to=to)

    def recv(self, *, into: Payload, source: int, reduce: Reduction | None = None) -> None:
        coming = self._room(into)
        self._comm.recv(into=coming, source=source)
        self._take(coming, into, reduce)

    def _room(self, like: Payload) -> Array:
        """Bytes for a message of as many numbers."""
        return self._allocate(self._wire.encoded_bytes(len(like)), np.uint8, kind="buffers", owner="codes")

    def _encoded(self, outgoing: Payload) -> Array:
        coded = self._room(outgoing)
        self._wire.encode(outgoing, coded)
        return coded

    def _take(self, coded: Array, into: Payload, reduce: Reduction | None) -> None:
        if reduce is None:
            self._wire.decode(coded, into)
            return
        into[:] = reduce(self._decoded(coded, into), into)

    def _decoded(self, coded: Array, like: Payload) -> Array:
        arrived = self._allocate(len(like), like.dtype, kind="buffers", owner="codes")
        self._wire.decode(coded, arrived)
        return arrived


class FedBack(Narrowed):
    """A communicator that also feeds back what its encoding of `chunks` loses; `residual` has it, chunk by chunk."""

    def __init__(
        self, comm: Communicator, wire: Narrow, allocate: Allocator, chunks: Sequence[Payload], residual: Array
    ) -> None:
        super().__init__(comm, wire, allocate)
        self._chunks = chunks
        self._residuals = split(residual, len(chunks))

    def _encoded(self, outgoing: Payload) -> Array:
        residual = self._residual_of(outgoing)
        residual += outgoing
        coded = super()._encoded(residual)
        residual -= self._decoded(coded, outgoing)
        residual[~np.isfinite(residual)] = 0
        return coded

    def _residual_of(self, outgoing: Payload) -> Array:
        """What was lost of the chunk that leaves; some algorithms also send what has no elements."""
        wanted = memory_of(outgoing)
        found: Array = next(
            (residual for chunk, residual in zip(self._chunks, self._residuals, strict=True)
             if memory_of(chunk) == wanted), self._residuals[0][:0])
        return found


@dataclass(frozen=True)
class OnNarrowWires:
    """A reduce-scatter, over communicators whose messages are encoded."""

    collective: Callable[..., None]
    wire: Narrow
    allocate: Allocator

    def __call__(self, comm: Communicator, chunks: Sequence[Payload]) -> None:
        self.collective(Narrowed(comm, self.wire, self.allocate), chunks)

    def encoding_bytes(self, chunk: Payload) -> int:
        """How many bytes are read and written to encode a chunk: its numbers twice, for scales and for codes."""
        return 2 * int(chunk.nbytes) + self.wire.encoded_bytes(len(chunk))

    def take_room(self, chunk: Payload) -> None:
        """Take, and give back, what one exchange of a chunk takes: where none takes place, for the ledger."""
        sizes = [self.wire.encoded_bytes(len(chunk))] * 2
        coded = [self.allocate(size, np.uint8, kind="buffers", owner="codes") for size in sizes]
        coded.pop()
        coded.append(self.allocate(len(chunk), chunk.dtype, kind="buffers", owner="codes"))


@dataclass(frozen=True)
class WithErrorFeedback(OnNarrowWires):
    """A reduce-scatter that also adds what earlier ones have lost: `residual` is this rank's, of the same vector."""

    residual: Array

    def __call__(self, comm: Communicator, chunks: Sequence[Payload]) -> None:
        self.collective(FedBack(comm, self.wire, self.allocate, chunks, self.residual), chunks)

    def encoding_bytes(self, chunk: Payload) -> int:
        """How many bytes are read and written to add what was lost, to encode, to decode, and to keep the new loss."""
        coded, residual = self.wire.encoded_bytes(len(chunk)), len(chunk) * int(self.residual.dtype.itemsize)
        return 3 * int(chunk.nbytes) + 6 * residual + 2 * coded
