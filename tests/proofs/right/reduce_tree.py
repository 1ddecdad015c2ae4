"""A reduce by bits."""

import numpy as np


def reduce(comm, vector, root, reduce=np.add):
    me, bit = (comm.rank - root) % comm.size, 1
    while bit < comm.size:
        if me & bit:
            comm.send(vector, to=(me - bit + root) % comm.size)
            return
        if me + bit < comm.size:
            comm.recv(into=vector, source=(me + bit + root) % comm.size, reduce=reduce)
        bit *= 2
