"""Shifted trees send sums also where the tree has no such edge: right on powers of two, which no partner needs.
"""

import numpy as np


def reduce_scatter(comm, chunks, reduce=np.add):
    size, distance = comm.size, 1
    while distance < size:
        to, source = (comm.rank - distance) % size, (comm.rank + distance) % size
        for multiple in range(0, size, 2 * distance):
            comm.exchange(chunks[(to - multiple) % size], to=to, into=chunks[(comm.rank - multiple) % size],
                          source=source, reduce=reduce)
        distance *= 2
