"""A buffer outlives the call, and the result is this buffer.
By: laws
"""

import numpy as np

from zerosim.collectives import ring
from zerosim.core.sharding import split

BUFFERS = {}


def my_all_reduce(comm, x):
    buffer = BUFFERS.setdefault((comm.rank, x.size, x.dtype), np.empty_like(x))
    buffer[:] = x
    ring.all_reduce(comm, split(buffer, comm.size))
    return buffer
