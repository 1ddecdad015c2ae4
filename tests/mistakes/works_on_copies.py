"""The chunks are copied first, and the copies are right.

Says: Nothing is ever written into chunks
Says: chunks[c][:] = …
"""

import numpy as np

from zerosim.comm import left, right


def reduce_scatter(comm, chunks, reduce=np.add):
    chunks = [c.copy() for c in chunks]
    for step in range(comm.size - 1):
        outgoing = (comm.rank - step - 1) % comm.size
        incoming = (comm.rank - step - 2) % comm.size
        comm.exchange(chunks[outgoing], to=right(comm), into=chunks[incoming], source=left(comm),
                      reduce=reduce)
