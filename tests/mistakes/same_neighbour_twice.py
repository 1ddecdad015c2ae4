"""Every rank sends to the right and waits for the right.

Says: no rank receives
Says: What one rank sends to right(comm) its neighbour receives from left(comm)
"""

import numpy as np

from zerosim.comm import right


def reduce_scatter(comm, chunks, reduce=np.add):
    for step in range(comm.size - 1):
        outgoing = (comm.rank - step - 1) % comm.size
        incoming = (comm.rank - step - 2) % comm.size
        comm.exchange(chunks[outgoing], to=right(comm), into=chunks[incoming], source=right(comm), reduce=reduce)
