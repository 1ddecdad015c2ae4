"""Messages go to the left, and the chunks are those of a ring that runs to the right.

Says: the other way
Says: swap left(comm) and right(comm)
"""

import numpy as np

from zerosim.comm import left, right


def reduce_scatter(comm, chunks, reduce=np.add):
    for step in range(comm.size - 1):
        outgoing = (comm.rank - step - 1) % comm.size
        incoming = (comm.rank - step - 2) % comm.size
        comm.exchange(chunks[outgoing], to=left(comm), into=chunks[incoming], source=right(comm), reduce=reduce)
