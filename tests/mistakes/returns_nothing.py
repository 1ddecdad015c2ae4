"""The result is not returned.

Says: returned None
Says: return the result as an array
"""

from zerosim.collectives import ring
from zerosim.sharding import split


def my_all_reduce(comm, x):
    total = x.copy()
    ring.all_reduce(comm, split(total, comm.size))
