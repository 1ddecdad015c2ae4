"""It adds, whatever it is told.
By: laws
"""

import numpy as np

from zerosim.collectives import ring
from zerosim.core.sharding import split


def my_all_reduce(comm, x, reduce=np.add):
    total = x.copy()
    ring.all_reduce(comm, split(total, comm.size), np.add)
    return total
