"""The loop starts with the rank's own, and comes back to it.

Says: adds
Says: g0
"""

from zerosim.comm import left, right


def my_all_reduce(comm, x):
    total, passing = x.copy(), x.copy()
    for _ in range(comm.size):
        comm.exchange(passing.copy(), to=right(comm), into=passing, source=left(comm))
        total += passing
    return total
