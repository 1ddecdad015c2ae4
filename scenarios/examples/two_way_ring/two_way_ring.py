"""A ring in both directions at once: the first half of each chunk goes right, the second goes left."""

import numpy as np

from zerosim.extend import Exchange, collective


def halves(chunk):
    """The half that goes right, and the half that goes left."""
    middle = len(chunk) // 2
    return chunk[:middle], chunk[middle:]


def both_rings(contributions, chunk):
    """Each half in the order of its ring, which ends with the owner: from the right neighbour on, and from the left."""
    size, sums = len(contributions), []
    for half, turn in enumerate((1, -1)):
        total = halves(contributions[(chunk + turn) % size])[half]
        for distance in range(2, size + 1):
            total = total + halves(contributions[(chunk + turn * distance) % size])[half]
        sums.append(total)
    return np.concatenate(sums)


def both_ways(comm, chunks, behind, reduce=None):
    """One step: each rank sends half of the chunk `behind` its own, by each ring's turn, and receives the next one."""
    comm.exchange_all([
        Exchange(halves(chunks[(comm.rank - turn * behind) % comm.size])[half], (comm.rank + turn) % comm.size,
                 halves(chunks[(comm.rank - turn * (behind + 1)) % comm.size])[half], (comm.rank - turn) % comm.size,
                 reduce)
        for half, turn in enumerate((1, -1))])


@collective(order=both_rings, chunks_sent=lambda ranks: ranks - 1)
def reduce_scatter(comm, chunks, reduce=np.add):
    for step in range(comm.size - 1):
        both_ways(comm, chunks, step + 1, reduce)


def all_gather(comm, chunks):
    for step in range(comm.size - 1):
        both_ways(comm, chunks, step)
