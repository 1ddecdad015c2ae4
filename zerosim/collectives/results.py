"""The memory of collectives on whole arrays: the input is only read, the result lies in fresh memory or in `out`."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from zerosim.core.allocation import Array
from zerosim.core.comm import Communicator
from zerosim.core.errors import CollectiveError
from zerosim.core.sharding import bounds

InPlace = Callable[[Communicator, Array], None]
"""A collective in place on a flat array."""


def memory(count: int, dtype: npt.DTypeLike, out: Array | None) -> Array:
    """`count` elements on one axis: the memory of `out` if it is contiguous, otherwise fresh memory."""
    if out is None or not out.flags.c_contiguous:
        return np.empty(count, dtype)
    return out.reshape(-1)


def worked_on(comm: Communicator, x: Array, out: Array | None, collective: InPlace) -> Array:
    """The result of a collective in place on a copy of `x`, in fresh memory or in `out`."""
    flat = copied(x, out)
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
