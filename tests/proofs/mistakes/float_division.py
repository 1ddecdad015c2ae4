"""A rank that is half of something.
"""

import numpy as np


def reduce(comm, vector, root, reduce=np.add):
    position = (comm.rank - root) % comm.size
    for child in (2 * position + 1, 2 * position + 2):
        if child < comm.size:
            comm.recv(into=vector, source=(child + root) % comm.size, reduce=reduce)
    if position:
        comm.send(vector, to=((position - 1) / 2 + root) % comm.size)
