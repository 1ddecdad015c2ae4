"""The sum is made in a buffer of zeros.

Says: np.empty and np.zeros are float64
"""

import numpy as np

from zerosim.comm import left, right


def my_all_reduce(comm, x):
    total = np.zeros(len(x))
    passing = x.copy()
    for _ in range(comm.size):
        total += passing
        comm.exchange(passing.copy(), to=right(comm), into=passing, source=left(comm))
    return total.astype(x.dtype)
