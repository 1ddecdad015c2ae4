"""A list of pieces instead of one array.
"""

from zerosim.comm import left, right


def my_all_gather(comm, x):
    pieces = [x.copy() for _ in range(comm.size)]
    for step in range(comm.size - 1):
        comm.exchange(pieces[(comm.rank - step) % comm.size], to=right(comm),
                      into=pieces[(comm.rank - step - 1) % comm.size], source=left(comm))
    return pieces
