"""Two levels with a dataclass for a group."""

from dataclasses import dataclass

import numpy as np


@dataclass
class Group:
    comm: object
    members: list

    @property
    def me(self):
        return self.members.index(self.comm.rank)

    def swap(self, parts, first, reduce=None):
        n = len(self.members)
        for k in range(n - 1):
            self.comm.exchange(parts[(self.me - first - k) % n], to=self.members[(self.me + 1) % n],
                               into=parts[(self.me - first - k - 1) % n], source=self.members[self.me - 1],
                               reduce=reduce)


def all_reduce_two_level(comm, chunks, per_host, reduce=np.add):
    hosts = comm.size // per_host
    mine = comm.rank - comm.rank % per_host
    inside = Group(comm, list(range(mine, mine + per_host)))
    across = Group(comm, list(range(comm.rank % per_host, comm.size, per_host)))
    pieces = [chunks[i:i + hosts] for i in range(0, comm.size, hosts)]
    small = [chunks[inside.me * hosts + h] for h in range(hosts)]
    inside.swap(pieces, 1, reduce)
    across.swap(small, 1, reduce)
    across.swap(small, 0)
    inside.swap(pieces, 0)
