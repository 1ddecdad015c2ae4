"""Rabenseifner's all-reduce: halving with the nearest partner first, then doubling with the partners in reverse order.

    chunks     one view for each rank, cut from one flat vector by `sharding.split`
    partner    the rank whose number (among the members, in all_reduce) differs in one bit
    theirs     the chunks that the partner keeps
    ours       the chunks that this rank keeps
    members    the ranks that remain after folding

Laws, for n bytes in all chunks together and N = size:

    steps          all_reduce 2 ⌊log2 N⌋, and 2 where N is no power of two; reduce_scatter N − 1
    bytes sent     2n (N − 1) / N and n (N − 1) / N by each rank where N is a power of two
    addition       near tree: ((g[0] + g[1]) + (g[2] + g[3])) + …, after folding, in every chunk
    ranks          all_reduce any, others fold first; reduce_scatter a power of two

all_reduce halves contiguous runs, so chunk c is complete on the rank whose number is c with its bits reversed.
reduce_scatter keeps every second chunk, then every fourth …, so chunk c is complete on rank c; each chunk then needs a
message of its own.

Source: Rabenseifner, "Optimization of collective reduction operations" (2004); the order of
addition is that of its form in MPICH.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from zerosim.collectives.folding import fold, members, unfold
from zerosim.collectives.pairs import aligned, near_first, ranked
from zerosim.core.comm import Communicator, Payload, Reduction
from zerosim.core.sharding import Chunks


def reduce_scatter(
    comm: Communicator, chunks: Sequence[Payload], reduce: Reduction = np.add
) -> None:
    """Write into `chunks[comm.rank]` its reduction over all ranks; the other chunks hold partial sums."""
    for distance in near_first(comm.size):
        partner = comm.rank ^ distance
        for outgoing in range(partner % (2 * distance), comm.size, 2 * distance):
            incoming = outgoing ^ distance
            comm.exchange(chunks[outgoing], to=partner, into=chunks[incoming], source=partner,
                          reduce=ranked(reduce, partner, comm.rank))


def all_reduce(comm: Communicator, chunks: Chunks, reduce: Reduction = np.add) -> None:
    """Write into every chunk its reduction over all ranks: the same bytes on every rank."""
    fold(comm, chunks[:], reduce)
    partners = list(meetings(comm.rank, comm.size, chunks))
    for partner, theirs, ours in partners:
        comm.exchange(theirs, to=partner, into=ours, source=partner,
                      reduce=ranked(reduce, partner, comm.rank))
    for partner, theirs, ours in reversed(partners):
        comm.exchange(ours, to=partner, into=theirs, source=partner)
    unfold(comm, chunks[:])


def meetings(rank: int, size: int, chunks: Any) -> Iterator[tuple[int, Any, Any]]:
    """The partners of `rank`, nearest first, with `theirs` and `ours`; none for a rank that folded.

    >>> list(meetings(1, 4, range(4)))
    [(0, range(0, 2), range(2, 4)), (3, range(3, 4), range(2, 3))]
    """
    ranks = members(size)
    places = len(ranks)
    if rank not in ranks:
        return
    place = ranks.index(rank)
    for distance in near_first(places):
        length = places // (2 * distance)
        theirs = aligned(chunks, backwards(place ^ distance, places), length, places)
        ours = aligned(chunks, backwards(place, places), length, places)
        yield ranks[place ^ distance], theirs, ours


def backwards(place: int, places: int) -> int:
    """The bits of `place` in reverse.

    >>> [backwards(place, 8) for place in range(8)]
    [0, 4, 2, 6, 1, 5, 3, 7]
    """
    return sum(places // (2 * bit) for bit in near_first(places) if place & bit)
