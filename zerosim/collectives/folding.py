"""Folding: where the number of ranks is no power of two, some ranks send their vector to a neighbour and wait.

    vector     all chunks as one view
    members    the ranks that continue, a power of two of them, ascending
    extra      the number of ranks beyond that power of two; as many fold

Laws, for n bytes in the vector:

    steps          1 to fold, 1 to unfold; none where size is a power of two
    bytes sent     n by each rank that folds, and n back by its neighbour
    addition       g[0] + g[1], g[2] + g[3], … for the first `extra` pairs

Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
MPICH" (2005), on all-reduce where the number of ranks is no power of two.
"""

from functools import cache

from zerosim.core.comm import Communicator, Payload, Reduction


@cache
def members(size: int) -> tuple[int, ...]:
    """The odd rank of each of the first `extra` pairs, and every rank after them.

    >>> members(6), members(8)
    ((1, 3, 4, 5), (0, 1, 2, 3, 4, 5, 6, 7))
    """
    return (*range(1, 2 * extra(size), 2), *range(2 * extra(size), size))


@cache
def extra(size: int) -> int:
    """size − 2^⌊log2 size⌋.

    >>> extra(6), extra(8)
    (2, 0)
    """
    return size - (1 << (size.bit_length() - 1))


def fold(comm: Communicator, vector: Payload, reduce: Reduction) -> None:
    """Add the vector of each rank that folds to its neighbour's."""
    if comm.rank < 2 * extra(comm.size):
        if comm.rank % 2 == 0:
            comm.send(vector, to=comm.rank + 1)
        else:
            comm.recv(into=vector, source=comm.rank - 1, reduce=reduce)


def unfold(comm: Communicator, vector: Payload) -> None:
    """Send the result to the ranks that folded."""
    if comm.rank < 2 * extra(comm.size):
        if comm.rank % 2 == 0:
            comm.recv(into=vector, source=comm.rank + 1)
        else:
            comm.send(vector, to=comm.rank - 1)
