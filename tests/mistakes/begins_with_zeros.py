"""The sum begins with zeros of the right dtype.

Says: begin with a copy of one contribution, not with zeros
"""

import numpy as np

from zerosim.comm import left, right


def my_all_reduce(comm, x):
    total = np.zeros_like(x)
    passing = x.copy()
    for _ in range(comm.size):
        total = total + passing
        comm.exchange(passing.copy(), to=right(comm), into=passing, source=left(comm))
    return total
