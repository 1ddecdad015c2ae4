"""The result is not returned.
"""

from zerosim.collectives import ring
from zerosim.core.sharding import split


def my_all_reduce(comm, x):
    total = x.copy()
    ring.all_reduce(comm, split(total, comm.size))
