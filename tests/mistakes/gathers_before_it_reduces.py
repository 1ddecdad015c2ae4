"""The two halves of an all-reduce in the wrong order.

Says: first the half that adds
"""

import numpy as np

from zerosim.collectives import ring


def all_reduce(comm, chunks, reduce=np.add):
    ring.all_gather(comm, chunks)
    ring.reduce_scatter(comm, chunks, reduce)
