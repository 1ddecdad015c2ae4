"""One receive buffer, of which references are collected.
"""

import numpy as np

from zerosim.comm import left, right


def my_all_gather(comm, x):
    buffer, pieces, passing = np.empty_like(x), {comm.rank: x}, x
    for step in range(comm.size - 1):
        comm.exchange(passing, to=right(comm), into=buffer, source=left(comm))
        pieces[(comm.rank - step - 1) % comm.size] = passing = buffer
    return np.concatenate([pieces[rank] for rank in range(comm.size)])
