"""The caller's array is worked on.
By: laws
"""

from zerosim.collectives import ring
from zerosim.core.sharding import split


def my_all_reduce(comm, x):
    ring.all_reduce(comm, split(x, comm.size))
    return x.copy()
