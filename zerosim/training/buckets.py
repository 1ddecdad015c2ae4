"""Collectives with a limit on bytes per call; the boundaries of chunks do not move.

    bucket    the part of a vector that one call handles: the same piece of every chunk

The order of addition of an element depends on its chunk alone, so buckets do not change bits. Each element travels as
often as without buckets, so the sum of bytes does not change either. Calls and messages are more, and no message is
larger than a bucket.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from zerosim.collectives.exact import LIMB_BYTES
from zerosim.core.allocation import Allocator, Array
from zerosim.core.comm import Communicator, Payload
from zerosim.core.sharding import split
from zerosim.stages.adding import AddRanks, ReduceScatter, Rounding

Broadcast = Callable[[Communicator, Payload, int], None]


@dataclass(frozen=True)
class Buckets:
    """Buckets of at most `most_bytes` for all chunks together; 0 means no limit."""

    most_bytes: int

    def pieces(self, length: int, column_bytes: int) -> list[slice]:
        """The pieces of chunks with `length` elements; one element of every chunk has `column_bytes` bytes.

        >>> Buckets(100).pieces(5, column_bytes=48), Buckets(0).pieces(5, column_bytes=48)
        ([slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)], [slice(0, 5, None)])
        """
        most = max(self.most_bytes // column_bytes, 1)
        if not self.most_bytes or length <= most:
            return [slice(0, length)]
        return [slice(start, min(start + most, length)) for start in range(0, length, most)]

    def chunked(self, collective: ReduceScatter) -> ReduceScatter:
        """`collective(comm, chunks)` bucket by bucket; no chunk may be longer than the first."""

        def call(comm: Communicator, chunks: Sequence[Payload]) -> None:
            for piece in self.pieces(len(chunks[0]), len(chunks) * chunks[0].dtype.itemsize):
                collective(comm, [chunk[piece] for chunk in chunks])

        return call if self.most_bytes else collective

    def broadcast(self, whole: Broadcast) -> Broadcast:
        """`whole(comm, vector, root)` bucket by bucket."""
        return lambda comm, vector, root: self.chunked(lambda comm, parts: whole(comm, parts[0], root))(comm, [vector])

    def order_free(self, add: AddRanks, allocate: Allocator) -> AddRanks:
        """`add(comm, contributions, rounding)` bucket by bucket, on copies, because it needs contiguous vectors."""

        def call(comm: Communicator, contributions: Sequence[Array], rounding: Rounding) -> Array:
            full = contributions[0]
            own = split(full, comm.size)[comm.rank]
            pieces = self.pieces(len(split(full, comm.size)[0]), comm.size * LIMB_BYTES)
            if len(pieces) == 1:
                return add(comm, contributions, rounding)
            for piece in pieces:
                copies = []
                for columns in (vector.reshape(comm.size, -1)[:, piece] for vector in contributions):
                    copies.append(allocate(columns.size, columns.dtype, kind="buffers", owner="bucket"))
                    copies[-1].reshape(columns.shape)[:] = columns
                own[piece] = split(add(comm, copies, rounding), comm.size)[comm.rank]
            return full

        return call
