"""rank ^ distance, of which some are none.
"""

import numpy as np


def my_all_reduce(comm, x):
    total, distance = x.copy(), 1
    while distance < comm.size:
        comm.exchange(total.copy(), to=comm.rank ^ distance, into=total, source=comm.rank ^ distance, reduce=np.add)
        distance *= 2
    return total
