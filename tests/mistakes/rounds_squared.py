"""As many rounds as ranks squared.

Says: it makes 16 rounds, and after 3 every sum is complete
Says: range(comm.size − 1)
"""

import numpy as np

from zerosim.comm import left, right


def reduce_scatter(comm, chunks, reduce=np.add):
    for step in range(comm.size * comm.size):
        comm.exchange(chunks[(comm.rank - step - 1) % comm.size], to=right(comm),
                      into=chunks[(comm.rank - step - 2) % comm.size], source=left(comm), reduce=reduce)
