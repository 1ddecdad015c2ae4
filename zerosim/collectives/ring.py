"""The ring: every rank sends to its right neighbour and receives from its left one, size − 1 times in each half.

A rank sends in each step the chunk that arrived in the previous one. reduce_scatter starts with the left neighbour's
chunk, so the rank's own chunk arrives last, with every rank's contribution; all_gather starts with the rank's own.

    chunks     one view for each rank, cut from one flat vector by `sharding.split`
    outgoing   the index of the chunk that is sent in this step
    incoming   the index of the chunk that arrives in this step

Laws, for n bytes in all chunks together and N = size:

    all_reduce = all_gather ∘ reduce_scatter
    steps          N − 1 for reduce_scatter, N − 1 for all_gather
    bytes sent     by each rank in each of the two, all chunks but one: n (N − 1) / N if they are equally long
    addition       chunk c is ((g[c+1] + g[c+2]) + …) + g[c], where g[r] is rank r's contribution, indices modulo N;
                   the arrived sum is the left operand

>>> from zerosim.proofs.proof import summed
>>> summed(reduce_scatter, ranks=3)
[((g1 + g2) + g0), ((g2 + g0) + g1), ((g0 + g1) + g2)]

Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations"
(2009), section 3.
"""

from collections.abc import Sequence

import numpy as np

from zerosim.core.comm import Communicator, Payload, Reduction, left, right


def reduce_scatter(
    comm: Communicator, chunks: Sequence[Payload], reduce: Reduction = np.add
) -> None:
    """Write into `chunks[comm.rank]` the sum of that chunk over all ranks; the other chunks hold partial sums."""
    for step in range(comm.size - 1):
        outgoing = (comm.rank - step - 1) % comm.size
        incoming = (comm.rank - step - 2) % comm.size
        comm.exchange(chunks[outgoing], to=right(comm),
                      into=chunks[incoming], source=left(comm), reduce=reduce)


def all_gather(comm: Communicator, chunks: Sequence[Payload]) -> None:
    """Fill every chunk c with the chunk c of rank c, its owner."""
    for step in range(comm.size - 1):
        outgoing = (comm.rank - step) % comm.size
        incoming = (comm.rank - step - 1) % comm.size
        comm.exchange(chunks[outgoing], to=right(comm),
                      into=chunks[incoming], source=left(comm))


def all_reduce(comm: Communicator, chunks: Sequence[Payload], reduce: Reduction = np.add) -> None:
    """Write into every chunk its sum over all ranks: the same bytes on every rank."""
    reduce_scatter(comm, chunks, reduce)
    all_gather(comm, chunks)
