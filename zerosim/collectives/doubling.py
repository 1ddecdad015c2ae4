"""Recursive doubling: partners exchange all chunks that they hold, the nearest partner first.

    chunks     one view for each rank, cut from one flat vector by `sharding.split`
    partner    the rank whose number (among the members, in all_reduce) differs in one bit
    length     how many chunks a rank holds before the step; also the distance of the two partners
    members    the ranks that remain after folding

Laws, for n bytes in all chunks together and N = size:

    steps          all_gather log2 N; all_reduce ⌊log2 N⌋, and 2 where N is no power of two
    bytes sent     all_gather n (N − 1) / N; all_reduce n in each step of a rank
    addition       near tree: ((g[0] + g[1]) + (g[2] + g[3])) + …, after folding
    ranks          all_gather a power of two; all_reduce any, others fold first

Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
MPICH" (2005), on all-gather and all-reduce.
"""

import numpy as np

from zerosim.collectives.folding import fold, members, unfold
from zerosim.collectives.pairs import aligned, near_first, ranked
from zerosim.core.comm import Communicator, Reduction
from zerosim.core.sharding import Chunks


def all_gather(comm: Communicator, chunks: Chunks) -> None:
    """Fill every chunk c with the chunk c of rank c, its owner."""
    for length in near_first(comm.size):
        partner = comm.rank ^ length
        comm.exchange(aligned(chunks, comm.rank, length, comm.size), to=partner,
                      into=aligned(chunks, partner, length, comm.size), source=partner)


def all_reduce(comm: Communicator, chunks: Chunks, reduce: Reduction = np.add) -> None:
    """Write into every chunk its reduction over all ranks: the same bytes on every rank."""
    vector, ranks = chunks[:], members(comm.size)
    fold(comm, vector, reduce)
    if comm.rank in ranks:
        for distance in near_first(len(ranks)):
            partner = ranks[ranks.index(comm.rank) ^ distance]
            comm.exchange(vector, to=partner, into=vector, source=partner, reduce=ranked(reduce, partner, comm.rank))
    unfold(comm, vector)
