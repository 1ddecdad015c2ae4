"""Naive collectives: every other rank sends one message to the root, or receives one from it.

    root       the rank that has, or gets, the whole
    vector     a flat payload, of the same length on every rank
    chunks     one view for each rank, cut from one flat vector by `sharding.split`

Laws, for n bytes in the vector and N = size:

    reduce_scatter = scatter ∘ reduce
    all_reduce     = broadcast ∘ reduce
    steps          N − 1, one after the other at the root; twice that for the two compositions
    bytes sent     broadcast n (N − 1) by the root, reduce n by every other rank;
                   scatter n (N − 1) / N by the root, gather n / N by every other rank
    addition       ((g[0] + g[1]) + g[2]) + … in rank order, for every root

Source: "MPI: A Message-Passing Interface Standard", chapter "Collective Communication", which
defines each of these by what a root would do.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from zerosim.collectives.pairs import in_turn
from zerosim.core.comm import Communicator, Payload, Reduction
from zerosim.core.sharding import Chunks


def others(comm: Communicator) -> Iterator[int]:
    """Every rank but this one, in rank order."""
    return (rank for rank in range(comm.size) if rank != comm.rank)


def broadcast(comm: Communicator, vector: Payload, root: int) -> None:
    """Fill `vector` with the root's."""
    if comm.rank == root:
        for rank in others(comm):
            comm.send(vector, to=rank)
    else:
        comm.recv(into=vector, source=root)


def reduce(
    comm: Communicator, vector: Payload, root: int, reduce: Reduction = np.add
) -> None:
    """Write into the root's `vector` its reduction over all ranks; the other vectors are unchanged."""
    if comm.rank != root:
        comm.send(vector, to=root)
        return
    own = vector.copy()
    for source in others(comm):
        comm.recv(into=vector, source=source, reduce=in_turn(reduce, source, root, own))


reduce_to = reduce  # below, `reduce` is the name of an argument


def scatter(comm: Communicator, chunks: Sequence[Payload], root: int) -> None:
    """Fill `chunks[comm.rank]` with the root's chunk of that number."""
    if comm.rank == root:
        for rank in others(comm):
            comm.send(chunks[rank], to=rank)
    else:
        comm.recv(into=chunks[comm.rank], source=root)


def gather(comm: Communicator, chunks: Sequence[Payload], root: int) -> None:
    """Fill every chunk c on the root with the chunk c of rank c, its owner."""
    if comm.rank == root:
        for rank in others(comm):
            comm.recv(into=chunks[rank], source=rank)
    else:
        comm.send(chunks[comm.rank], to=root)


def reduce_scatter(comm: Communicator, chunks: Chunks, reduce: Reduction = np.add) -> None:
    """Write into `chunks[comm.rank]` its reduction over all ranks."""
    reduce_to(comm, chunks[:], 0, reduce)
    scatter(comm, chunks, 0)


def all_reduce(comm: Communicator, chunks: Chunks, reduce: Reduction = np.add) -> None:
    """Write into every chunk its reduction over all ranks: the same bytes on every rank."""
    reduce_to(comm, chunks[:], 0, reduce)
    broadcast(comm, chunks[:], 0)
