"""Blocking sends first: it works as long as they are buffered.

Says: only as long as a send does not wait for its receiver
Says: comm.exchange
"""

import numpy as np

from zerosim.comm import left, right


def reduce_scatter(comm, chunks, reduce=np.add):
    for step in range(comm.size - 1):
        comm.send(chunks[(comm.rank - step - 1) % comm.size], to=right(comm))
        comm.recv(into=chunks[(comm.rank - step - 2) % comm.size], source=left(comm), reduce=reduce)
