"""One chunk is sent and received into at once.

Says: receives into chunk
Says: the very one that it sends
"""

import numpy as np

from zerosim.comm import left, right


def reduce_scatter(comm, chunks, reduce=np.add):
    for step in range(comm.size - 1):
        outgoing = (comm.rank - step - 1) % comm.size
        incoming = (comm.rank - step - 1) % comm.size
        comm.exchange(chunks[outgoing], to=right(comm), into=chunks[incoming], source=left(comm), reduce=reduce)
