"""The reduction is called where it should be handed on.

Says: pass the function itself, reduce=reduce
"""

import numpy as np

from zerosim.comm import left, right


def reduce_scatter(comm, chunks, reduce=np.add):
    for step in range(comm.size - 1):
        comm.exchange(chunks[(comm.rank - step - 1) % comm.size], to=right(comm),
                      into=chunks[(comm.rank - step - 2) % comm.size], source=left(comm), reduce=reduce())
