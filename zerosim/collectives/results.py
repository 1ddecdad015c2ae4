"""Collectives out of place: the destination is fresh memory or `out`, with as few copies as possible.

The input is only read, the result goes elsewhere, and most of the input is never copied. A collective works in place on
`out`. Until a part of `out` is written, it stands for the same part of `x`: the part is sent from `x`, and an arriving
message is reduced with it, as into = arrived + x. Parts that are never written are copied at the end. A ring therefore
reads and writes memory as often as in place.

    fresh      runs of elements for which `out` still stands for `x`, as pairs of numbers
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from zerosim.collectives.table import Algorithm
from zerosim.core.allocation import Array
from zerosim.core.comm import Communicator, ElementByElement, Exchange, Reduction, Swapped
from zerosim.core.errors import CollectiveError
from zerosim.core.sharding import bounds

InPlace = Callable[[Communicator, Array], None]
"""A collective in place on a flat array."""


def memory(count: int, dtype: npt.DTypeLike, out: Array | None) -> Array:
    """`count` elements on one axis: the memory of `out` if it is contiguous, otherwise fresh memory."""
    if out is None or not out.flags.c_contiguous:
        return np.empty(count, dtype)
    return out.reshape(-1)


def worked_on(chosen: Algorithm, comm: Communicator, x: Array, out: Array | None, collective: InPlace) -> Array:
    """The result of a collective in place on `x`, in fresh memory or in `out`."""
    check_out(out, x.shape, x.dtype)
    flat = memory(x.size, x.dtype, out)
    if x.nbytes >= WORTH_BYTES and x.flags.c_contiguous and not x.dtype.hasobject and not chosen.reads_vector:
        source = x.reshape(-1)
        if start_of(source, flat) == 0:
            collective(comm, flat)
            return returned(flat, x.shape, out)
        if not np.may_share_memory(source, flat):
            unmodified = Unmodified(comm, source, flat)
            collective(unmodified, flat)
            unmodified.finish()
            return returned(flat, x.shape, out)
    flat.reshape(x.shape)[...] = x
    collective(comm, flat)
    return returned(flat, x.shape, out)


def copied(x: Array, out: Array | None) -> Array:
    """A flat copy of `x`, in the memory of `out` if that is contiguous."""
    check_out(out, x.shape, x.dtype)
    flat = memory(x.size, x.dtype, out)
    flat.reshape(x.shape)[...] = x
    return flat


def returned(flat: Array, shape: tuple[int, ...], out: Array | None) -> Array:
    """`flat` in `shape`; or `out`, into which it is copied unless it is there already."""
    if out is None:
        return flat.reshape(shape)
    if not out.flags.c_contiguous:
        out[...] = flat.reshape(out.shape)
    return out


def copied_out(chunk: Array, out: Array | None) -> Array:
    """`chunk` in memory of its own, so that the vector it was cut from can be freed."""
    if out is None:
        return chunk.copy()
    out[...] = chunk
    return out


def whole_length(comm: Communicator, shard: Array, out: Array | None) -> int:
    """The number of elements of the vector of which `shard` is this rank's chunk."""
    if out is None:
        return shard.size * comm.size
    check_out(out, np.shape(out), shard.dtype)
    first, last = bounds(out.size, comm.size)[comm.rank]
    if shard.size != last - first:
        raise CollectiveError(
            f"rank {comm.rank} brings {shard.size} elements, but its chunk of an out= of {out.size} "
            f"over {comm.size} ranks has {last - first}; give out= the length of the whole vector"
        )
    return out.size


def check_out(out: Array | None, shape: tuple[int, ...], dtype: npt.DTypeLike) -> None:
    if out is None:
        return
    if not isinstance(out, np.ndarray):
        raise CollectiveError(f"out= is a {type(out).__name__}; give a NumPy array")
    if out.shape != shape or out.dtype != dtype:
        raise CollectiveError(
            f"out= is {out.shape} of {out.dtype}, the result {shape} of {dtype}; pass np.empty({shape}, "
            f"{str(dtype)!r})"
        )
    if not out.flags.writeable:
        raise CollectiveError("out= is read-only; pass a copy of it")


WORTH_BYTES = 1 << 20
"""The least bytes of a vector for which a copy costs more than this bookkeeping."""


class From(ElementByElement):
    """`reduction` with the elements of `x` instead of those of `out`, into `out`."""

    def __init__(self, reduction: np.ufunc | Swapped, x: Array, out: Array) -> None:
        self._reduction, self._x, self._out = reduction, x, out

    def reduce_into(self, arrived: Array, into: Array) -> None:
        first = start_of(into, self._out)
        mine = self._x[first : first + into.size].reshape(into.shape)
        if isinstance(self._reduction, Swapped):
            self._reduction.ufunc(mine, arrived, out=into)
        else:
            self._reduction(arrived, mine, out=into)


class Unmodified:
    """`comm`, for a collective in place on flat `out` whose input is flat `x`."""

    def __init__(self, comm: Communicator, x: Array, out: Array) -> None:
        self.rank, self.size = comm.rank, comm.size
        self._comm, self._x, self._out = comm, x, out
        self._fresh = [(0, out.size)]

    def exchange(
        self, outgoing: Array, *, to: int, into: Array, source: int, reduce: Reduction | None = None
    ) -> None:
        self._comm.exchange(self._sent(outgoing), to=to, into=into, source=source, reduce=self._written(into, reduce))

    def exchange_all(self, exchanges: Sequence[Exchange]) -> None:
        outgoing = [self._sent(each.outgoing) for each in exchanges]
        self._comm.exchange_all([
            each._replace(outgoing=sent, reduce=self._written(each.into, each.reduce))
            for each, sent in zip(exchanges, outgoing, strict=True)])

    def send(self, outgoing: Array, *, to: int) -> None:
        self._comm.send(self._sent(outgoing), to=to)

    def recv(self, *, into: Array, source: int, reduce: Reduction | None = None) -> None:
        self._comm.recv(into=into, source=source, reduce=self._written(into, reduce))

    def finish(self) -> None:
        """Copy the parts that were never written."""
        for first, last in self._fresh:
            self._out[first:last] = self._x[first:last]
        self._fresh = []

    def _sent(self, outgoing: Array) -> Array:
        first = start_of(outgoing, self._out)
        if self._is_fresh(first, first + outgoing.size):
            return self._x[first : first + outgoing.size]
        self._settle(first, first + outgoing.size)
        return outgoing

    def _written(self, into: Array, reduce: Reduction | None) -> Reduction | None:
        """The reduction that an arriving message needs for `into`, which counts as written from now on."""
        first = start_of(into, self._out)
        last = first + into.size
        if reduce is None:
            self._fresh = [*outside(self._fresh, first, last)]
        elif self._is_fresh(first, last) and isinstance(reduce, np.ufunc | Swapped):
            self._fresh = [*outside(self._fresh, first, last)]
            return From(reduce, self._x, self._out)
        else:
            self._settle(first, last)
        return reduce

    def _is_fresh(self, first: int, last: int) -> bool:
        return any(begin <= first and last <= end for begin, end in self._fresh)

    def _settle(self, first: int, last: int) -> None:
        """Copy the fresh parts from `first` to `last` of `x` into `out`."""
        for begin, end in self._fresh:
            inner = slice(max(begin, first), min(end, last))
            self._out[inner] = self._x[inner]
        self._fresh = [*outside(self._fresh, first, last)]


def outside(runs: list[tuple[int, int]], first: int, last: int) -> Iterator[tuple[int, int]]:
    """The parts of `runs` that are not between `first` and `last`.

    >>> [*outside([(0, 4), (6, 9)], 2, 7)], [*outside([(0, 9)], 0, 9)]
    ([(0, 2), (7, 9)], [])
    """
    for begin, end in runs:
        yield from ((a, b) for a, b in ((begin, min(end, first)), (max(begin, last), end)) if a < b)


def start_of(part: Array, whole: Array) -> int:
    """The index in flat `whole` of the first element of `part`, a view of a run of it."""
    address, base = (array.__array_interface__["data"][0] for array in (part, whole))
    return int(address - base) // whole.itemsize
