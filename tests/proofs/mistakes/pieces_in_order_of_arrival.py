"""The pieces are put together as they came.
"""

import numpy as np

from zerosim.comm import left, right


def my_all_gather(comm, x):
    pieces = [x]
    for _ in range(comm.size - 1):
        arrived = np.empty_like(x)
        comm.exchange(pieces[-1], to=right(comm), into=arrived, source=left(comm))
        pieces.append(arrived)
    return np.concatenate(pieces)
