"""Two levels: neighbours in pairs first, then a ring of the pairs. All-reduce is the two halves one after the other."""

import numpy as np

from zerosim.extend import collective


def pairs_then_ring(contributions, chunk):
    """Sums of neighbours, then the ring of these sums that ends with the owner's pair."""
    if len(contributions) == 1:
        return contributions[0]
    pairs = [contributions[n] + contributions[n + 1] for n in range(0, len(contributions), 2)]
    total = pairs[(chunk // 2 + 1) % len(pairs)]
    for distance in range(2, len(pairs) + 1):
        total = total + pairs[(chunk // 2 + distance) % len(pairs)]
    return total


@collective(order=pairs_then_ring, powers_of_two=True)
def reduce_scatter(comm, chunks, reduce=np.add):
    """Each rank of a pair adds the other's half of all chunks; then the ranks of the same place walk their ring."""
    if comm.size == 1:
        return
    place, pair, pairs = comm.rank % 2, comm.rank // 2, comm.size // 2
    partner = comm.rank ^ 1
    for other in range(pairs):
        comm.exchange(chunks[2 * other + 1 - place], to=partner, into=chunks[2 * other + place], source=partner,
                      reduce=reduce)
    for step in range(pairs - 1):
        outgoing = (pair - step - 1) % pairs
        incoming = (pair - step - 2) % pairs
        comm.exchange(chunks[2 * outgoing + place], to=(comm.rank + 2) % comm.size,
                      into=chunks[2 * incoming + place], source=(comm.rank - 2) % comm.size, reduce=reduce)


@collective(powers_of_two=True)
def all_gather(comm, chunks):
    """The way back: the ring of the pairs, then the other's half within the pair."""
    if comm.size == 1:
        return
    place, pair, pairs = comm.rank % 2, comm.rank // 2, comm.size // 2
    partner = comm.rank ^ 1
    for step in range(pairs - 1):
        outgoing = (pair - step) % pairs
        incoming = (pair - step - 1) % pairs
        comm.exchange(chunks[2 * outgoing + place], to=(comm.rank + 2) % comm.size,
                      into=chunks[2 * incoming + place], source=(comm.rank - 2) % comm.size)
    for other in range(pairs):
        comm.exchange(chunks[2 * other + place], to=partner, into=chunks[2 * other + 1 - place], source=partner)
