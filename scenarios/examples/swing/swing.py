"""Swing: partners on alternating sides, at distances 1, 1, 3, 5, 11, …, so that few hops are shared on a ring or torus.

    partner    of an even rank r in step s: r + 1 − 2 + 4 − … (−2)ˢ; of an odd rank r minus that; modulo the ranks
    owed       the chunks that a rank still reduces after a step: its own, and those of its later partners

The number of ranks is a power of two. Here each chunk is a message; the authors pack those of a step. Plans of this
example pay a latency for each chunk: with few bytes on a square torus it loses to halving, with many bytes it wins.

Source: De Sensi, Bonato, Saam and Hoefler, "Swing: short-cutting rings for higher bandwidth allreduce" (2024), section
3.
"""

import numpy as np

from zerosim.extend import Exchange, collective


def steps_of(size):
    return size.bit_length() - 1


def partner(rank, step, size):
    distance = (1 - (-2) ** (step + 1)) // 3
    return (rank + (distance if rank % 2 == 0 else -distance)) % size


def owed(rank, step, size):
    """The chunks that a rank reduces from this step on."""
    if step == steps_of(size):
        return [rank]
    return sorted(owed(rank, step + 1, size) + owed(partner(rank, step, size), step + 1, size))


def swings(contributions, chunk):
    """In each step a rank adds its sum so far to that of its partner."""
    def total(rank, step):
        if step == 0:
            return contributions[rank]
        return total(partner(rank, step - 1, len(contributions)), step - 1) + total(rank, step - 1)

    return total(chunk, steps_of(len(contributions)))


@collective(order=swings, chunks_sent=lambda ranks: ranks - 1, powers_of_two=True)
def reduce_scatter(comm, chunks, reduce=np.add):
    for step in range(steps_of(comm.size)):
        other = partner(comm.rank, step, comm.size)
        pairs = zip(owed(other, step + 1, comm.size), owed(comm.rank, step + 1, comm.size), strict=True)
        comm.exchange_all([Exchange(chunks[theirs], other, chunks[mine], other, reduce) for theirs, mine in pairs])


@collective(powers_of_two=True)
def all_gather(comm, chunks):
    for step in reversed(range(steps_of(comm.size))):
        other = partner(comm.rank, step, comm.size)
        pairs = zip(owed(comm.rank, step + 1, comm.size), owed(other, step + 1, comm.size), strict=True)
        comm.exchange_all([Exchange(chunks[mine], other, chunks[theirs], other) for mine, theirs in pairs])
