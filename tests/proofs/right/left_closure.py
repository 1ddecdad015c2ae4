"""A ring to the left, in a closure."""

import numpy as np

from zerosim.comm import left, right


def mover(comm, reduce):
    def move(mine, theirs):
        comm.exchange(mine, to=left(comm), into=theirs, source=right(comm), reduce=reduce)
    return move


def reduce_scatter_left(comm, chunks, reduce=np.add):
    move, at = mover(comm, reduce), comm.rank + 1
    for _ in range(1, comm.size):
        move(chunks[at % comm.size], chunks[(at + 1) % comm.size])
        at += 1
