"""count // size elements in each chunk: the remainder stays behind.
"""

from zerosim.collectives import ring


def my_all_reduce(comm, x):
    total, length = x.copy(), len(x) // comm.size
    ring.all_reduce(comm, [total[c * length : (c + 1) * length] for c in range(comm.size)])
    return total
