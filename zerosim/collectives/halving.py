"""Recursive halving: partners exchange halves of the chunks that they still reduce, the farthest partner first.

    chunks     one view for each rank, cut from one flat vector by `sharding.split`
    partner    the rank whose number differs in one bit
    half       how many chunks each of the two keeps; also the distance of the two partners

Laws, for n bytes in all chunks together and N = size, a power of two:

    steps          log2 N
    bytes sent     n (N − 1) / N by each rank
    addition       far tree: with T(r, N) = g[r] and T(r, d) = T(r ^ d, 2d) + T(r, 2d),
                   chunk c is T(c, 1); of four ranks, chunk 0 is (g[3] + g[1]) + (g[2] + g[0])

>>> from zerosim.proofs.proof import summed
>>> summed(reduce_scatter, ranks=4)[:2]
[((g3 + g1) + (g2 + g0)), ((g2 + g0) + (g3 + g1))]

Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
MPICH" (2005), on reduce-scatter.
"""

import numpy as np

from zerosim.collectives.pairs import aligned, far_first
from zerosim.core.comm import Communicator, Reduction
from zerosim.core.sharding import Chunks


def reduce_scatter(comm: Communicator, chunks: Chunks, reduce: Reduction = np.add) -> None:
    """Write into `chunks[comm.rank]` its reduction over all ranks; the other chunks hold partial sums."""
    for half in far_first(comm.size):
        partner = comm.rank ^ half
        comm.exchange(aligned(chunks, partner, half, comm.size), to=partner,
                      into=aligned(chunks, comm.rank, half, comm.size), source=partner,
                      reduce=reduce)
