"""The ring that adds, with names for the two chunks."""

import numpy as np

from zerosim.comm import left, right


def reduce_scatter(comm, chunks, reduce=np.add):
    for step in range(comm.size - 1):
        outgoing = (comm.rank - step - 1) % comm.size
        incoming = (comm.rank - step - 2) % comm.size
        comm.exchange(chunks[outgoing], to=right(comm), into=chunks[incoming], source=left(comm), reduce=reduce)
