"""A class that goes around."""

import numpy as np


class Ring:
    def __init__(self, comm):
        self.comm, self.n = comm, comm.size

    def turn(self, chunks, first, **more):
        for c in [(first - k) % self.n for k in range(self.n - 1)]:
            self.comm.exchange(chunks[c], to=(self.comm.rank + 1) % self.n, into=chunks[c - 1],
                               source=(self.comm.rank - 1) % self.n, **more)


def all_reduce(comm, chunks, reduce=np.add):
    ring = Ring(comm)
    ring.turn(chunks, comm.rank - 1, reduce=reduce)
    ring.turn(chunks, comm.rank)
