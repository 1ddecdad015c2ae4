"""MPI's own reductions, forced to one algorithm by the environment: they must leave the bytes of ours.

`python -m tests.mpi.outside COLLECTIVE=ALGORITHM …`, with the names of `FORCED`, fails on the first vector whose
bytes differ from those of our algorithm, or from the sum in the declared order.

Where we have no algorithm, MPI is compared with the order as a plain function. That the forcing took effect needs no
word of the library: on these vectors different orders give other bytes in more than a tenth of the elements, and a test
that claims another algorithm than the one forced fails. Recursive doubling and Rabenseifner give the same bytes by
design, so bytes cannot tell them apart.
"""

import sys
from typing import Any, NamedTuple

import numpy as np

import zerosim as zs
from zerosim.collectives import ALGORITHMS
from zerosim.collectives.folding import extra
from zerosim.core import orders
from zerosim.core.sharding import bounds


def own_first_leftward(contributions, chunk):
    """((g[c] + g[c-1]) + g[c-2]) + …, indices modulo the number of ranks.

    >>> own_first_leftward(["a", "b", "c", "d"], 1)
    'badc'
    """
    size = len(contributions)
    return orders.rank_order([contributions[(chunk - step) % size] for step in range(size)], chunk)


def folded_far_tree(contributions, chunk):
    """The far tree over a power of two of sums: the first pairs of ranks are added beforehand.

    >>> from zerosim.core.terms import Term
    >>> folded_far_tree([Term(rank) for rank in range(5)], 4)
    (((g0 + g1) + g3) + (g2 + g4))
    """
    pairs = extra(len(contributions))
    added = [contributions[2 * pair] + contributions[2 * pair + 1] for pair in range(pairs)]
    place = chunk // 2 if chunk < 2 * pairs else chunk - pairs
    return orders.far_tree([*added, *contributions[2 * pairs :]], place)


class Forced(NamedTuple):
    """What an MPI library's algorithm computes, and which algorithm of ours does the same."""

    order: orders.AddingOrder
    ours: str | None = None


FORCED = {
    "all_reduce": {
        "ring": Forced(orders.ring, "ring"),
        "recursive_doubling": Forced(orders.folded_tree, "doubling"),
        "reduce_scatter_allgather": Forced(orders.folded_tree, "rabenseifner"),
    },
    "reduce_scatter": {
        "pairwise": Forced(own_first_leftward),
        "recursive_halving": Forced(folded_far_tree, "halving"),
        "recursive_doubling": Forced(orders.near_tree, "rabenseifner"),
    },
}
LENGTHS = (0, 1, 2, 3, 5, 7, 8, 9, 12, 24, 31, 128, 1000)
DTYPES = ("f4", "f8")


def vectors(size: int, count: int, dtype: str) -> list[np.ndarray]:
    """What each rank brings: magnitudes so far apart that most sums depend on their order."""
    random = np.random.default_rng([size, count])
    spread = 2.0 ** random.integers(-9, 9, (size, count))
    return list((random.normal(size=(size, count)) * spread).astype(dtype))


def summed(forced: Forced, brought: list[np.ndarray]) -> np.ndarray:
    """The whole sum in the declared order, chunk by chunk."""
    return np.concatenate([
        forced.order([vector[first:last] for vector in brought], chunk)
        for chunk, (first, last) in enumerate(bounds(brought[0].size, len(brought)))
    ])


def all_reduce(comm: Any, mpi: Any, forced: Forced) -> None:
    for dtype in DTYPES:
        for count in LENGTHS:
            brought = vectors(comm.size, count, dtype)
            theirs = np.empty(count, dtype)
            mpi.Allreduce(brought[comm.rank], theirs)
            same(theirs, summed(forced, brought))
            if forced.ours is not None:
                same(theirs, zs.all_reduce(comm, brought[comm.rank], algorithm=forced.ours))


def reduce_scatter(comm: Any, mpi: Any, forced: Forced) -> None:
    for dtype in DTYPES:
        for length in LENGTHS:
            brought = vectors(comm.size, length * comm.size, dtype)
            theirs = np.empty(length, dtype)
            mpi.Reduce_scatter_block(brought[comm.rank], theirs)
            same(theirs, summed(forced, brought)[comm.rank * length : (comm.rank + 1) * length])
            if forced.ours and ALGORITHMS[f"{forced.ours}.reduce_scatter"].serves(comm.size):
                same(theirs, zs.reduce_scatter(comm, brought[comm.rank], algorithm=forced.ours))


def same(theirs: np.ndarray, ours: np.ndarray) -> None:
    differ = int((theirs != ours).sum())
    assert theirs.tobytes() == ours.tobytes(), f"{differ} of {ours.size} elements differ from MPI's"


def main(names: list[str]) -> None:
    comm = zs.connect(timeout_seconds=300)
    from mpi4py import MPI

    for name in names:
        collective, algorithm = name.split("=")
        globals()[collective](comm, MPI.COMM_WORLD, FORCED[collective][algorithm])
    if comm.rank == 0:
        print(f"{comm.size} ranks of {comm.library}: equal bytes in {', '.join(names)}")


if __name__ == "__main__":
    main(sys.argv[1:])
