"""The dissemination barrier: the number of ranks that a rank knows to have arrived doubles in every step.

    nothing    an empty message

Laws, for N = size:

    steps          ⌈log2 N⌉
    bytes sent     none, in ⌈log2 N⌉ messages

Source: Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization" (1988).
"""

import numpy as np

from zerosim.collectives.pairs import near_first
from zerosim.core.comm import Communicator


def barrier(comm: Communicator) -> None:
    """Return once every rank has called it."""
    nothing = np.empty(0, np.uint8)
    for distance in near_first(comm.size):
        comm.exchange(nothing, to=(comm.rank + distance) % comm.size,
                      into=nothing, source=(comm.rank - distance) % comm.size)
