"""Two levels: rings within hosts and rings between them, which reduces the bytes between hosts.

    per_host   neighbouring ranks on each host; the last host may have fewer
    host       the ranks of one host
    place      a rank's number within its host; on a host with fewer ranks, one rank stands in for several places
    column     the ranks of one place, one of each host
    row        the chunks that belong to the ranks of one host, place by place

Laws, for n bytes in all chunks together, N = size = H · p on H full hosts of p ranks:

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

from collections.abc import Callable, Iterator, Sequence
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
        within = among(comm, self.host(comm))
        for pieces in self.rows(comm, chunks):
            self.adds(within, pieces, reduce)
        for column, pieces in self.columns(comm, chunks):
            self.adds(column, pieces, reduce)

    def all_gather(self, comm: Communicator, chunks: Sequence[Payload]) -> None:
        """Fill every chunk c with the chunk c of rank c, its owner."""
        within = among(comm, self.host(comm))
        for column, pieces in self.columns(comm, chunks):
            ring.all_gather(column, pieces)
        for pieces in self.rows(comm, chunks):
            ring.all_gather(within, pieces)

    def all_reduce(self, comm: Communicator, chunks: Sequence[Payload], reduce: Reduction = np.add) -> None:
        """Write into every chunk its sum over all ranks: the same bytes on every rank."""
        self.reduce_scatter(comm, chunks, reduce)
        self.all_gather(comm, chunks)

    def broadcast(self, comm: Communicator, vector: Payload, root: int) -> None:
        """Fill `vector` with the root's: first on one rank of each host, then within each host."""
        place, host = root % self.per_host, self.host(comm)
        ranks = self.ranks(comm.size, place)
        if comm.rank in ranks:
            tree.broadcast(among(comm, ranks), vector, root // self.per_host)
        tree.broadcast(among(comm, host), vector, place % len(host))

    def host(self, comm: Communicator) -> range:
        """The ranks of this rank's host."""
        return self.hosts(comm.size)[comm.rank // self.per_host]

    def hosts(self, size: int) -> list[range]:
        """
        >>> on_hosts(2).hosts(5)
        [range(0, 2), range(2, 4), range(4, 5)]
        """
        return [range(size)[first : first + self.per_host] for first in range(0, size, self.per_host)]

    def ranks(self, size: int, place: int) -> list[int]:
        """The ranks of one place, or the ranks that stand in for it.

        >>> on_hosts(2).ranks(5, place=1)
        [1, 3, 4]
        """
        return [host[place % len(host)] for host in self.hosts(size)]

    def rows(self, comm: Communicator, chunks: Sequence[Payload]) -> Iterator[list[Payload]]:
        """The chunks of each host, one for each rank of this host; several lists per host if this host has fewer ranks.
        """
        members = len(self.host(comm))
        for host in range(len(self.hosts(comm.size))):
            for first in range(0, min(self.per_host, comm.size), members):
                yield [self.chunk(chunks, host, first + member) for member in range(members)]

    def columns(self, comm: Communicator, chunks: Sequence[Payload]) -> Iterator[tuple[Communicator, list[Payload]]]:
        """The ranks and the chunks of each place that this rank has or stands in for."""
        host = self.host(comm)
        for place in range(comm.rank - host.start, min(self.per_host, comm.size), len(host)):
            pieces = [self.chunk(chunks, each, place) for each in range(len(self.hosts(comm.size)))]
            yield among(comm, self.ranks(comm.size, place)), pieces

    def chunk(self, chunks: Sequence[Payload], host: int, place: int) -> Payload:
        """The chunk of the rank at this place; empty if there is no such rank."""
        number = host * self.per_host + place
        there = place < self.per_host and number < len(chunks)
        return chunks[number] if there else chunks[0][:0]


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
