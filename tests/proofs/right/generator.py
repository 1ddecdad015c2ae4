"""Numbers of chunks from a generator."""

import numpy as np

from zerosim.comm import left, right


def walk(comm, first):
    for step in range(comm.size - 1):
        yield (first - step) % comm.size, (first - step - 1) % comm.size


def all_reduce(comm, chunks, reduce=np.add):
    for out, into in walk(comm, comm.rank - 1):
        comm.exchange(chunks[out], to=right(comm), into=chunks[into], source=left(comm), reduce=reduce)
    for out, into in walk(comm, comm.rank):
        comm.exchange(chunks[out], to=right(comm), into=chunks[into], source=left(comm))
