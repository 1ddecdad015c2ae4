"""The binomial tree: runs of ranks are halved down to single ranks; the root of one half serves the root of the other.

    root       the rank that has, or gets, the whole
    near       the root of a run of ranks, and of the half of it that `near` is in
    far        the root of the other half, which exchanges with `near` on behalf of that half
    half       the ranks of `far`'s half, and so the chunks: contiguous for every root

Laws, for n bytes in the vector and N = size:

    steps          ⌈log2 N⌉
    bytes sent     broadcast n ⌈log2 N⌉ by the root at most, reduce n by every other rank;
                   scatter n (N − 1) / N by the root; gather n / 2 at most where N is a power of two
    addition       the aligned binary tree ((g[0] + g[1]) + (g[2] + g[3])) + …, for every root

A run is cut at the largest power of two below its length. With root 0 this is the binomial tree in
which rank r receives from r without its lowest bit. With any other root it keeps those runs and the
order of the ranks, where the usual tree renumbers the ranks from the root on.

Source: Johnsson and Ho, "Optimum broadcasting and personalized communication in hypercubes" (1989).
"""

from collections.abc import Iterator

import numpy as np

from zerosim.collectives.pairs import ranked
from zerosim.core.comm import Communicator, Payload, Reduction
from zerosim.core.sharding import Chunks


def halvings(rank: int, size: int, root: int) -> Iterator[tuple[int, int, slice]]:
    """`near`, `far` and `half` of each run that contains `rank`, from all ranks down to itself.

    >>> list(halvings(rank=2, size=5, root=3))
    [(3, 4, slice(4, 5, None)), (3, 0, slice(0, 2, None)), (3, 2, slice(2, 3, None))]
    """
    near, first, last = root, 0, size
    while last - first > 1:
        middle = first + (1 << ((last - first - 1).bit_length() - 1))
        if near < middle:
            far, half = middle, slice(middle, last)
        else:
            far, half = first, slice(first, middle)
        yield near, far, half
        if half.start <= rank < half.stop:
            near = far
        first, last = (first, middle) if rank < middle else (middle, last)


def broadcast(comm: Communicator, vector: Payload, root: int) -> None:
    """Fill `vector` with the root's."""
    for near, far, _ in halvings(comm.rank, comm.size, root):
        if comm.rank == near:
            comm.send(vector, to=far)
        elif comm.rank == far:
            comm.recv(into=vector, source=near)


def reduce(
    comm: Communicator, vector: Payload, root: int, reduce: Reduction = np.add
) -> None:
    """Write into the root's `vector` its reduction over all ranks; the other vectors hold partial sums."""
    for near, far, _ in reversed(list(halvings(comm.rank, comm.size, root))):
        if comm.rank == far:
            comm.send(vector, to=near)
        elif comm.rank == near:
            comm.recv(into=vector, source=far, reduce=ranked(reduce, far, near))


def scatter(comm: Communicator, chunks: Chunks, root: int) -> None:
    """Fill `chunks[comm.rank]` with the root's chunk of that number; intermediate ranks overwrite other chunks."""
    for near, far, half in halvings(comm.rank, comm.size, root):
        if comm.rank == near:
            comm.send(chunks[half], to=far)
        elif comm.rank == far:
            comm.recv(into=chunks[half], source=near)


def gather(comm: Communicator, chunks: Chunks, root: int) -> None:
    """Fill every chunk c on the root with the chunk c of rank c, its owner."""
    for near, far, half in reversed(list(halvings(comm.rank, comm.size, root))):
        if comm.rank == far:
            comm.send(chunks[half], to=near)
        elif comm.rank == near:
            comm.recv(into=chunks[half], source=far)
