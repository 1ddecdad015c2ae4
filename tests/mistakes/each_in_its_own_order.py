"""Each rank adds in the order in which vectors come by.

Says: the ranks disagree
Says: each rank adds in the order in which contributions reach it
"""

from zerosim.comm import left, right


def my_all_reduce(comm, x):
    total, passing = x.copy(), x.copy()
    for _ in range(comm.size - 1):
        comm.exchange(passing.copy(), to=right(comm), into=passing, source=left(comm))
        total += passing
    return total
