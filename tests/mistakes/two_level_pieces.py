"""The pieces inside a host have as many chunks as a host has ranks.

Says: on 6 ranks
Says: a piece has as many chunks as there are hosts
"""

import numpy as np


def walk(comm, group, me, pieces, first, reduce=None):
    size = len(group)
    for step in range(size - 1):
        comm.exchange(pieces[(me + first - step) % size], to=group[(me + 1) % size],
                      into=pieces[(me + first - step - 1) % size], source=group[(me - 1) % size], reduce=reduce)


def all_reduce_two_level(comm, chunks, per_host, reduce=np.add):
    hosts = comm.size // per_host
    host, place = divmod(comm.rank, per_host)
    inside, between = range(host * per_host, (host + 1) * per_host), range(place, comm.size, per_host)
    pieces = [chunks[rank * per_host : (rank + 1) * per_host] for rank in range(per_host)]
    mine = [chunks[place * hosts + each] for each in range(hosts)]
    walk(comm, inside, place, pieces, -1, reduce)
    walk(comm, between, host, mine, -1, reduce)
    walk(comm, between, host, mine, 0)
    walk(comm, inside, place, pieces, 0)
