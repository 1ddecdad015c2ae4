"""Direct: every rank exchanges messages with every other rank; no message passes through a third.

    chunks     one view for each rank, cut from one flat vector by `sharding.split`
    partner    the rank of this step, to which and from which a rank sends and receives; from 0 up
    own        this rank's contribution to its own chunk

Laws, for n bytes in all chunks together and N = size:

    all_reduce = all_gather ∘ reduce_scatter
    steps          reduce_scatter 2N − 3, all_gather and all_to_all N − 1, all_reduce 3N − 4
    bytes sent     n (N − 1) / N by each rank, in all_reduce twice that
    scratch        one chunk
    addition       ((g[0] + g[1]) + g[2]) + … in rank order, in every chunk

In step t of reduce_scatter rank r exchanges with rank t − r. So contributions arrive in rank order and none has to be
kept. An order that starts at r would take half as many steps.

>>> from zerosim.proofs.proof import summed
>>> summed(reduce_scatter, ranks=4)[:2]
[(((g0 + g1) + g2) + g3), (((g0 + g1) + g2) + g3)]

Source: pairwise exchange in Thakur, Rabenseifner and Gropp, "Optimization of collective
communication operations in MPICH" (2005), there without the order.
"""

from collections.abc import Sequence

import numpy as np

from zerosim.collectives.pairs import in_turn
from zerosim.core.comm import Communicator, Payload, Reduction


def reduce_scatter(
    comm: Communicator, chunks: Sequence[Payload], reduce: Reduction = np.add
) -> None:
    """Write into `chunks[comm.rank]` its reduction over all ranks; the other chunks are unchanged."""
    own = chunks[comm.rank].copy()
    for partner in range(comm.size):
        if partner != comm.rank:
            comm.exchange(chunks[partner], to=partner, into=chunks[comm.rank], source=partner,
                          reduce=in_turn(reduce, partner, comm.rank, own))


def all_gather(comm: Communicator, chunks: Sequence[Payload]) -> None:
    """Fill every chunk c with the chunk c of rank c, its owner."""
    for step in range(1, comm.size):
        incoming = (comm.rank - step) % comm.size
        comm.exchange(chunks[comm.rank], to=(comm.rank + step) % comm.size,
                      into=chunks[incoming], source=incoming)


def all_reduce(comm: Communicator, chunks: Sequence[Payload], reduce: Reduction = np.add) -> None:
    """Write into every chunk its reduction over all ranks: the same bytes on every rank."""
    reduce_scatter(comm, chunks, reduce)
    all_gather(comm, chunks)


def all_to_all(
    comm: Communicator, outgoing: Sequence[Payload], incoming: Sequence[Payload]
) -> None:
    """Fill `incoming[r]` with rank r's `outgoing[comm.rank]`, for every r."""
    incoming[comm.rank][...] = outgoing[comm.rank]
    for step in range(1, comm.size):
        to = (comm.rank + step) % comm.size
        source = (comm.rank - step) % comm.size
        comm.exchange(outgoing[to], to=to, into=incoming[source], source=source)
