"""What is sent on is the sum so far, not what has just arrived.

Says: send on what arrived in the round before
"""

import numpy as np

from zerosim.comm import left, right


def my_all_reduce(comm, x):
    total = x.copy()
    for _ in range(comm.size - 1):
        arrived = np.empty_like(x)
        comm.exchange(total, to=right(comm), into=arrived, source=left(comm))
        total = total + arrived
    return total
