"""A ring to the left that leaves each sum one rank on."""

import numpy as np

from zerosim.comm import left, right


def reduce_scatter_elsewhere(comm, chunks, reduce=np.add):
    n, r = comm.size, comm.rank
    for s in range(n - 1):
        comm.exchange(chunks[(r + s) % n], to=left(comm), into=chunks[(r + s + 1) % n],
                      source=right(comm), reduce=reduce)
