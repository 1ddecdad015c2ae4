"""Every rank sends to the right and waits for the right.

Says: no rank receives
Says: A message sent to right(comm) is received from left(comm) by that neighbour
"""

import numpy as np

from zerosim.comm import right


def reduce_scatter(comm, chunks, reduce=np.add):
    for step in range(comm.size - 1):
        outgoing = (comm.rank - step - 1) % comm.size
        incoming = (comm.rank - step - 2) % comm.size
        comm.exchange(chunks[outgoing], to=right(comm), into=chunks[incoming], source=right(comm), reduce=reduce)
