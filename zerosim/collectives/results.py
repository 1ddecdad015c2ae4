"""A collective on whole arrays: the input is only read, the result lies in fresh memory or in `out`."""

from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from zerosim.collectives.kinds import COLLECTIVE_KINDS
from zerosim.collectives.table import find
from zerosim.core.allocation import Array
from zerosim.core.comm import Communicator, Reduction
from zerosim.core.errors import CollectiveError
from zerosim.core.sharding import bounds, split

ASSOCIATIVE = (
    np.add, np.multiply, np.maximum, np.minimum, np.fmax, np.fmin,
    np.logical_and, np.logical_or, np.logical_xor,
    np.bitwise_and, np.bitwise_or, np.bitwise_xor,
    np.logaddexp, np.logaddexp2, np.hypot, np.gcd, np.lcm,
)
cached_find = lru_cache(maxsize=1024)(find)


def result_of(
    comm: Communicator, collective: str, x: npt.ArrayLike, algorithm: str, out: Array | None, *,
    root: int | None = None, reduce: Reduction | None = None, commutative: bool = True,
    brings: Literal["whole", "chunk"] = "whole", leaves: Literal["whole", "chunk", "whole on root"] = "whole",
) -> Any:
    """This rank's result of a collective in place on a copy of `x`; None on a rank without one.

    `root` and `reduce` are given to the collectives that have them. What a rank brings and has in the end is said here
    again, so that the table of kinds, by which proofs and laws judge these functions, has no part in them.
    """
    x, rank, size = np.asarray(x), comm.rank, comm.size
    integer = isinstance(root, int | np.integer) and not isinstance(root, bool)
    if root is not None and not (integer and 0 <= root < size):
        raise CollectiveError(f"root={root!r} is not a rank of {size}; give an integer from 0 to {size - 1}")
    count = x.size if brings == "whole" else whole_length(comm, x, out)
    chosen = cached_find(collective, algorithm, size, commutative=commutative)
    name = getattr(reduce, "__name__", "")
    if isinstance(reduce, np.ufunc) and getattr(np, name, None) is reduce and reduce not in ASSOCIATIVE:
        raise CollectiveError(f"np.{name} is not associative, so the grouping of ranks would change the result; use "
                              f"one of {', '.join('np.' + ufunc.__name__ for ufunc in ASSOCIATIVE)}")
    has_result = leaves != "whole on root" or rank == root
    out, own = out if has_result else None, slice(*bounds(count, size)[rank])
    if brings == "whole":
        check_out(out, (own.stop - own.start,) if leaves == "chunk" else x.shape, x.dtype)

    parameters = COLLECTIVE_KINDS[collective].parameters
    outgoing = split(x.flatten(), size) if "outgoing" in parameters else None
    in_out = out is not None and out.flags.c_contiguous and leaves != "chunk"
    flat = out.reshape(-1) if in_out and out is not None else np.empty(count, x.dtype)
    (flat if brings == "whole" else flat[own])[...] = x.reshape(-1)
    chunks = split(flat, size)
    views = {"vector": flat, "chunks": chunks, "outgoing": outgoing, "incoming": chunks}
    chosen.function(comm, *(views[name] for name in parameters),
                    *(argument for argument in (root, reduce) if argument is not None))

    if not has_result or in_out:
        return out
    if out is not None:
        out[...] = (flat[own] if leaves == "chunk" else flat).reshape(out.shape)
        return out
    if leaves == "chunk":    # in memory of its own, so that the vector it was cut from can be freed
        return flat[own].copy()
    return flat.reshape(x.shape) if brings == "whole" else flat


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
