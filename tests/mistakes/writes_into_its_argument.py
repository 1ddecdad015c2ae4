"""The caller's array is worked on.

Says: breaks inputs_stay_unchanged
Says: begin with x = x.copy()
By: laws
"""

from zerosim.collectives import ring
from zerosim.sharding import split


def my_all_reduce(comm, x):
    ring.all_reduce(comm, split(x, comm.size))
    return x.copy()
