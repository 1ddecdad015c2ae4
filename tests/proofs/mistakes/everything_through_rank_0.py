"""Rank 0 collects all vectors and sends the sums to the others.
"""

import numpy as np


def all_reduce(comm, chunks, reduce=np.add):
    everything = chunks[0 : comm.size]
    for other in range(1, comm.size):
        if comm.rank == 0:
            comm.recv(into=everything, source=other, reduce=reduce)
        elif comm.rank == other:
            comm.send(everything, to=0)
    for other in range(1, comm.size):
        if comm.rank == 0:
            comm.send(everything, to=other)
        elif comm.rank == other:
            comm.recv(into=everything, source=0)
