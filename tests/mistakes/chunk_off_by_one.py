"""The walk begins with the rank's own chunk, as an all-gather does.

Says: the full sum of chunk 0 is on rank 3, its owner is rank 0
Says: in step 0 send chunk (comm.rank − 1) % comm.size, where it sends comm.rank
"""

import numpy as np

from zerosim.comm import left, right


def reduce_scatter(comm, chunks, reduce=np.add):
    for step in range(comm.size - 1):
        outgoing = (comm.rank - step) % comm.size
        incoming = (comm.rank - step - 1) % comm.size
        comm.exchange(chunks[outgoing], to=right(comm), into=chunks[incoming], source=left(comm), reduce=reduce)
