"""The receiver puts what arrives one chunk too low.

Says: the outgoing chunk of a rank must be the incoming chunk of its neighbour
"""

import numpy as np

from zerosim.comm import left, right


def reduce_scatter(comm, chunks, reduce=np.add):
    for step in range(comm.size - 1):
        outgoing = (comm.rank - step - 1) % comm.size
        incoming = (comm.rank - step - 3) % comm.size
        comm.exchange(chunks[outgoing], to=right(comm), into=chunks[incoming], source=left(comm), reduce=reduce)
