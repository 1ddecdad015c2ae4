"""Exercise 1: the ring. Fill in the three functions, then run `zerosim check 1_ring.py`.

Every rank sits on a ring between `left(comm)` and `right(comm)`, and has one chunk of its vector for each rank:
`chunks[0]` … `chunks[comm.size - 1]`, views that you may read and write. In one step a rank sends a chunk to the
right while it receives one from the left:

    comm.exchange(chunks[outgoing], to=right(comm), into=chunks[incoming], source=left(comm))

With `reduce=reduce` what arrives is added to `chunks[incoming]` instead of replacing it. To see what yours does:

    zerosim prove 1_ring.py:reduce_scatter --ranks 4
"""

import numpy as np

from zerosim.comm import left, right  # noqa: F401
from zerosim.extend import collective


@collective(order="ring", chunks_sent=lambda ranks: ranks - 1)
def reduce_scatter(comm, chunks, reduce=np.add):
    """Leave in `chunks[comm.rank]` the sum of that chunk over all ranks; what is in the others does not matter.

    Chunk c sets out from rank c + 1, goes to the right, collects what every rank brings, and comes to rank c last. So
    it is added as ((g[c+1] + g[c+2]) + …) + g[c], in comm.size − 1 steps. Which chunk do you send in step 0? In the
    steps after that, which did you just receive? All numbers of chunks are modulo comm.size.
    """
    raise NotImplementedError


@collective(chunks_sent=lambda ranks: ranks - 1)
def all_gather(comm, chunks):
    """Fill every chunk with what its owner holds: rank r owns `chunks[r]`.

    The same walk, without adding: in comm.size − 1 steps every chunk goes around until all have it.
    """
    raise NotImplementedError


@collective(order="ring", chunks_sent=lambda ranks: 2 * (ranks - 1))
def all_reduce(comm, chunks, reduce=np.add):
    """Leave in every chunk its sum over all ranks: the same bytes on every rank."""
    raise NotImplementedError
