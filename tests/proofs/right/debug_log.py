"""A log of calls in the module, which changes nothing."""

import numpy as np

from zerosim.comm import left, right

LOG = []


def all_reduce(comm, chunks, reduce=np.add):
    LOG.append((comm.rank, comm.size))
    n = comm.size
    for k in range(2 * (n - 1)):
        adding = k < n - 1
        out = (comm.rank - k - 1) % n if adding else (comm.rank - (k - n + 1)) % n
        comm.exchange(chunks[out], to=right(comm), into=chunks[out - 1], source=left(comm),
                      reduce=reduce if adding else None)
