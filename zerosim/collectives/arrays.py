"""Collectives on whole arrays, in NumPy's style: any shape, any length, any dtype, `out=`.

    x           this rank's array; every rank passes the same shape and dtype
    shard       this rank's chunk of a flat vector, cut as in `zerosim.core.sharding`
    algorithm   a name from `ALGORITHMS`, or "auto", the first in the table that supports these ranks

Arrays are flattened in C order. Inputs are not modified and results are fresh arrays, unless `out`
is given; `out` may be the input, or overlap it.

    reduce        np.add, np.maximum …, or a function `(arrived, mine)` of two flat arrays of equal
                  length, which works element by element and is associative. Elements that belong
                  together, such as those of a 2×2 matrix, go into one element of a structured dtype.
    commutative   False for a function whose operands may not be swapped: then only algorithms that
                  keep the order of the ranks are used, and `reduce(left, right)` gets the operand
                  of the lower ranks as `left`.

The definitions are those of "MPI: A Message-Passing Interface Standard", chapter "Collective
Communication"; the order of addition is the declared `order` of each algorithm in the table.
"""

from typing import cast

import numpy as np
import numpy.typing as npt

from zerosim.collectives.results import result_of
from zerosim.collectives.table import find
from zerosim.core.allocation import Array
from zerosim.core.comm import Communicator, Reduction
from zerosim.core.errors import CollectiveError


def all_reduce(
    comm: Communicator,
    x: npt.ArrayLike,
    reduce: Reduction = np.add,
    *,
    algorithm: str | None = None,
    commutative: bool = True,
    out: Array | None = None,
) -> Array:
    """The reduction of `x` over all ranks, with the shape and dtype of `x`: the same bytes everywhere.

    `algorithm=None` is "ring", and "auto" with `commutative=False`. The ring adds chunk c as
    ((g[c+1] + g[c+2]) + …) + g[c].

    Raises `CollectiveError` for an operation that is not associative, for an `out` of a different shape or dtype, and
    for an algorithm that does not support these ranks.

    >>> from zerosim.worlds.local import spawn
    >>> spawn(lambda comm: all_reduce(comm, [1, 10 * comm.rank]).tolist(), ranks=3)
    [[3, 30], [3, 30], [3, 30]]
    """
    return cast("Array", result_of(comm, "all_reduce", x, algorithm or ring_if(commutative), out, reduce=reduce,
                                   commutative=commutative))


def reduce_scatter(
    comm: Communicator,
    x: npt.ArrayLike,
    reduce: Reduction = np.add,
    *,
    algorithm: str | None = None,
    commutative: bool = True,
    out: Array | None = None,
) -> Array:
    """This rank's chunk of the reduction of flat `x` over all ranks: one axis, the dtype of `x`.

    Chunk lengths are ceil(x.size / size), the last ones shorter or empty. `algorithm=None` is "ring",
    and "auto" with `commutative=False`. The ring adds chunk c as ((g[c+1] + g[c+2]) + …) + g[c].

    Raises `CollectiveError` as `all_reduce` does.

    >>> from zerosim.worlds.local import spawn
    >>> spawn(lambda comm: reduce_scatter(comm, np.arange(5)).tolist(), ranks=3)
    [[0, 3], [6, 9], [12]]
    """
    return cast("Array", result_of(comm, "reduce_scatter", x, algorithm or ring_if(commutative), out, reduce=reduce,
                                   commutative=commutative, leaves="chunk"))


def all_gather(
    comm: Communicator,
    shard: npt.ArrayLike,
    *,
    algorithm: str = "ring",
    out: Array | None = None,
) -> Array:
    """The shards of all ranks, concatenated in rank order: one axis, the inverse of `reduce_scatter`'s cut.

    Shards are equally long, unless every rank passes `out`: it has any shape and the length of the whole vector, and
    the shards are its chunks as `core.sharding` cuts them. For blocks of any other lengths pass a list of views,
    one for each rank, to `ring.all_gather` or `direct.all_gather`.

    Raises `CollectiveError` for a shard that is not its rank's chunk of the whole, for an `out` of a different dtype,
    and for an algorithm that does not support these ranks.

    >>> from zerosim.worlds.local import spawn
    >>> spawn(lambda comm: all_gather(comm, [comm.rank, -comm.rank]).tolist(), ranks=2)
    [[0, 0, 1, -1], [0, 0, 1, -1]]
    """
    return cast("Array", result_of(comm, "all_gather", shard, algorithm, out, brings="chunk"))


def broadcast(
    comm: Communicator,
    x: npt.ArrayLike,
    root: int = 0,
    *,
    algorithm: str = "auto",
    out: Array | None = None,
) -> Array:
    """The array that the root passed as `x`, on every rank, with its shape and dtype.

    The other ranks pass any array of that shape and dtype; its contents are ignored.

    Raises `CollectiveError` for a root that is no rank, for an `out` of a different shape or dtype, and for an
    algorithm that does not support these ranks.

    >>> from zerosim.worlds.local import spawn
    >>> spawn(lambda comm: broadcast(comm, [comm.rank, 7], root=2).tolist(), ranks=3)
    [[2, 7], [2, 7], [2, 7]]
    """
    return cast("Array", result_of(comm, "broadcast", x, algorithm, out, root=root))


def reduce(
    comm: Communicator,
    x: npt.ArrayLike,
    root: int = 0,
    reduce: Reduction = np.add,
    *,
    algorithm: str = "auto",
    commutative: bool = True,
    out: Array | None = None,
) -> Array | None:
    """The reduction of `x` over all ranks on the root, with the shape and dtype of `x`; None on the others.

    "auto" is the binomial tree, which adds ((g[0] + g[1]) + (g[2] + g[3])) + … for every root. `out` is used on the
    root alone.

    Raises `CollectiveError` as `all_reduce` does, and for a root that is no rank.

    >>> from zerosim.worlds.local import spawn
    >>> spawn(lambda comm: reduce(comm, [1, comm.rank], root=1), ranks=3)
    [None, array([3, 3]), None]
    """
    return cast("Array | None", result_of(
        comm, "reduce", x, algorithm, out, root=root, reduce=reduce, commutative=commutative, leaves="whole on root"))


def scatter(
    comm: Communicator,
    x: npt.ArrayLike,
    root: int = 0,
    *,
    algorithm: str = "auto",
    out: Array | None = None,
) -> Array:
    """This rank's chunk of the root's `x`, flattened: one axis, the dtype of `x`.

    The other ranks pass any array of that shape and dtype; its contents are ignored. For blocks of unequal length pass
    a list of views, one for each rank, to `naive.scatter`.

    Raises `CollectiveError` as `broadcast` does.

    >>> from zerosim.worlds.local import spawn
    >>> spawn(lambda comm: scatter(comm, np.arange(5) * (comm.rank == 0)).tolist(), ranks=3)
    [[0, 1], [2, 3], [4]]
    """
    return cast("Array", result_of(comm, "scatter", x, algorithm, out, root=root, leaves="chunk"))


def gather(
    comm: Communicator,
    shard: npt.ArrayLike,
    root: int = 0,
    *,
    algorithm: str = "auto",
    out: Array | None = None,
) -> Array | None:
    """The shards of all ranks on the root, concatenated in rank order: one axis; None on the others.

    Shards are equally long, unless every rank passes `out`: it has the length of the whole vector, and the shards are
    its chunks. It is written on the root alone. For blocks of any other lengths pass a list of views, one for each
    rank, to `naive.gather`.

    Raises `CollectiveError` as `all_gather` does, and for a root that is no rank.

    >>> from zerosim.worlds.local import spawn
    >>> spawn(lambda comm: gather(comm, [comm.rank, -comm.rank]), ranks=2)
    [array([ 0,  0,  1, -1]), None]
    """
    return cast("Array | None", result_of(
        comm, "gather", shard, algorithm, out, root=root, brings="chunk", leaves="whole on root"))


def all_to_all(
    comm: Communicator,
    x: npt.ArrayLike,
    *,
    algorithm: str = "auto",
    out: Array | None = None,
) -> Array:
    """Block r of the result is block `comm.rank` of rank r; the shape and dtype are those of `x`.

    Flat `x` is cut into one block for each rank, all equally long.

    Raises `CollectiveError` for a length that is no multiple of the number of ranks, for an `out` of a different shape
    or dtype, and for an algorithm that does not support these ranks.

    >>> from zerosim.worlds.local import spawn
    >>> spawn(lambda comm: all_to_all(comm, [10 * comm.rank, 10 * comm.rank + 1]).tolist(), ranks=2)
    [[0, 10], [1, 11]]
    """
    if np.size(x) % comm.size:
        raise CollectiveError(
            f"all_to_all of {np.size(x)} elements over {comm.size} ranks has no equal blocks; pad to "
            f"{np.size(x) + -np.size(x) % comm.size}"
        )
    return cast("Array", result_of(comm, "all_to_all", x, algorithm, out))


def barrier(comm: Communicator) -> None:
    """Returns once every rank has called it.

    >>> from zerosim.worlds.local import spawn
    >>> spawn(barrier, ranks=3)
    [None, None, None]
    """
    find("barrier", "auto", comm.size).function(comm)


def ring_if(commutative: bool) -> str:
    return "ring" if commutative else "auto"
