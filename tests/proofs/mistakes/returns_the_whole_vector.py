"""All chunks are returned, not the rank's own.
"""

from zerosim.collectives import ring
from zerosim.core.sharding import split


def my_reduce_scatter(comm, x):
    x = x.copy()
    ring.reduce_scatter(comm, split(x, comm.size))
    return x
