"""Chunk numbers run off the end.

Says: chunk 2 of 2
Says: modulo comm.size
"""

import numpy as np

from zerosim.comm import left, right


def reduce_scatter(comm, chunks, reduce=np.add):
    for step in range(comm.size - 1):
        outgoing = comm.rank + step + 1
        incoming = (comm.rank + step) % comm.size
        comm.exchange(chunks[outgoing], to=right(comm), into=chunks[incoming], source=left(comm), reduce=reduce)
