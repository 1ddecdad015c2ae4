"""The vector is cut as if the ranks divided it.
"""

from zerosim.collectives import ring


def my_all_reduce(comm, x):
    rows = x.copy().reshape(comm.size, -1)
    ring.all_reduce(comm, rows)
    return rows.reshape(-1)
