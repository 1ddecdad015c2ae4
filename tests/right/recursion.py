"""A ring by recursion."""

import numpy as np

from zerosim.comm import left, right


def reduce_scatter(comm, chunks, reduce=np.add):
    def go(step):
        if step == comm.size - 1:
            return
        out = (comm.rank - step - 1) % comm.size
        comm.exchange(chunks[out], to=right(comm), into=chunks[(out - 1) % comm.size], source=left(comm), reduce=reduce)
        go(step + 1)
    go(0)
