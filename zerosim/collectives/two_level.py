"""Two levels: rings within hosts and rings between them, which reduces the bytes between hosts.

    per_host   neighbouring ranks on each host; it divides the number of ranks, or there is one host with fewer
    host       the ranks of one host
    place      a rank's number within its host
    column     the ranks of one place, one of each host

Laws, for n bytes in all chunks together, N = size = H · p on H hosts of p ranks:

    all_reduce = all_gather ∘ reduce_scatter
    steps          N − 1 for reduce_scatter, N − 1 for all_gather, of which H − 1 between hosts
    bytes sent     by each rank in each of the two n (N − 1) / N, as in one ring; of these n (H − 1) / N between hosts
    addition       each host adds as a ring does, then the hosts' sums are added as a ring does

All ranks of a host share the traffic between hosts. In one ring through all ranks a single rank of each host sends all
of it: p times as much through one network card, and n (N − 1) / N from each host where two levels send n (H − 1) / H.

A trade-off: chunk r belongs to rank r, so the chunks for one place, one of each host, are not contiguous and take H
messages. An all-reduce alone could send them in one. It would then add in a different order than reduce_scatter.

>>> from zerosim.proofs.proof import summed
>>> summed(on_hosts(2).reduce_scatter, ranks=4)[:2]
[((g3 + g2) + (g1 + g0)), ((g2 + g3) + (g0 + g1))]

Source: Mikami et al., "Massively distributed SGD: ImageNet/ResNet-50 training in a flash" (2018): its two-dimensional
torus all-reduce.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from zerosim.collectives import direct, ring, tree
from zerosim.core.comm import Communicator, Payload, Reduction, among


@dataclass(frozen=True)
class TwoLevel:
    """The collectives on hosts of `per_host` neighbouring ranks; `adds` is the reduce-scatter of either level."""

    per_host: int
    adds: Callable[..., None] = ring.reduce_scatter

    def reduce_scatter(self, comm: Communicator, chunks: Sequence[Payload], reduce: Reduction = np.add) -> None:
        """Write into `chunks[comm.rank]` the sum of that chunk over all ranks; the other chunks hold partial sums."""
        host, column = self.host(comm), self.column(comm)
        for ranks in self.hosts(comm):
            self.adds(host, [chunks[rank] for rank in ranks], reduce)
        self.adds(column, [chunks[rank] for rank in self.ranks(comm)], reduce)

    def all_gather(self, comm: Communicator, chunks: Sequence[Payload]) -> None:
        """Fill every chunk c with the chunk c of rank c, its owner."""
        host, column = self.host(comm), self.column(comm)
        ring.all_gather(column, [chunks[rank] for rank in self.ranks(comm)])
        for ranks in self.hosts(comm):
            ring.all_gather(host, [chunks[rank] for rank in ranks])

    def all_reduce(self, comm: Communicator, chunks: Sequence[Payload], reduce: Reduction = np.add) -> None:
        """Write into every chunk its sum over all ranks: the same bytes on every rank."""
        self.reduce_scatter(comm, chunks, reduce)
        self.all_gather(comm, chunks)

    def broadcast(self, comm: Communicator, vector: Payload, root: int) -> None:
        """Fill `vector` with the root's: first on one rank of each host, then within each host."""
        host, place = divmod(root, self.per_host)
        if comm.rank % self.per_host == place:
            tree.broadcast(self.column(comm), vector, host)
        tree.broadcast(self.host(comm), vector, place)

    def host(self, comm: Communicator) -> Communicator:
        """The ranks of this rank's host."""
        return among(comm, self.hosts(comm)[comm.rank // self.per_host])

    def column(self, comm: Communicator) -> Communicator:
        """The ranks of this rank's place."""
        return among(comm, self.ranks(comm))

    def hosts(self, comm: Communicator) -> list[range]:
        """The numbers of each host's ranks."""
        return [range(comm.size)[first : first + self.per_host] for first in range(0, comm.size, self.per_host)]

    def ranks(self, comm: Communicator) -> range:
        """The numbers of a column's ranks."""
        return range(comm.rank % self.per_host, comm.size, self.per_host)


@cache
def in_two_hops(per_host: int) -> TwoLevel:
    """The collectives with an all-to-all on either level: contributions, then the hosts' sums, go straight to their
    owners.

    A contribution is quantised once within its host and, as part of its host's sum, once more between hosts, as qgZ of
    ZeRO++ requires; in rings every partial sum would be quantised again.

    >>> from zerosim.proofs.proof import summed
    >>> summed(in_two_hops(2).reduce_scatter, ranks=4)[0]
    ((g0 + g1) + (g2 + g3))
    """
    return TwoLevel(per_host, direct.reduce_scatter)


@cache
def on_hosts(per_host: int) -> TwoLevel:
    """The collectives on hosts of `per_host` ranks; cached, so that `algorithm_of` can compare their functions."""
    return TwoLevel(per_host)
