"""Exercise 2: trees. Fill in the two functions, then run `zerosim check 2_tree.py`.

The root could send to everyone itself, in comm.size − 1 rounds. It is quicker when ranks that have received send on:
their number can double in every round, so that ⌈log2 N⌉ rounds are enough. You have

    comm.send(vector, to=rank)
    comm.recv(into=vector, source=rank)                    # vector = what arrives
    comm.recv(into=vector, source=rank, reduce=reduce)     # vector = what arrives + vector

The number of ranks may be any, and so may the root. It may help to count ranks from the root on:
(comm.rank - root) % comm.size.
"""

import numpy as np

from zerosim.extend import collective


@collective(rounds=lambda ranks: (ranks - 1).bit_length())
def broadcast(comm, vector, root):
    """Fill `vector` with what the root holds in it, in ⌈log2 N⌉ rounds."""
    raise NotImplementedError


@collective(rounds=lambda ranks: (ranks - 1).bit_length())
def reduce(comm, vector, root, reduce=np.add):
    """Leave in the root's `vector` its sum over all ranks, in ⌈log2 N⌉ rounds.

    What is in the others' does not matter. A broadcast played backwards is a good start.
    """
    raise NotImplementedError
