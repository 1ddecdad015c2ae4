"""The right neighbour of the last rank is one that is not there.

Says: modulo comm.size, as right(comm) does
"""

import numpy as np

from zerosim.comm import left


def reduce_scatter(comm, chunks, reduce=np.add):
    for step in range(comm.size - 1):
        outgoing = (comm.rank - step - 1) % comm.size
        incoming = (comm.rank - step - 2) % comm.size
        comm.exchange(chunks[outgoing], to=comm.rank + 1, into=chunks[incoming], source=left(comm), reduce=reduce)
