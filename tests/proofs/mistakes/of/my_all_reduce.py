"""Each rank adds the vectors in the order in which they come by."""

import numpy as np

from zerosim.comm import left, right


def my_all_reduce(comm, x):
    total, passing = x.copy(), x.copy()
    for _ in range(comm.size - 1):
        arrived = np.empty_like(x)
        comm.exchange(passing, to=right(comm), into=arrived, source=left(comm))
        total = total + arrived
        passing = arrived
    return total
