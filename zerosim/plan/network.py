"""The times of messages on a cluster, one by one, as the code of a collective sends them: see `fluid`."""

from collections.abc import Callable
from typing import Any

import numpy as np

from zerosim.core.comm import SendsFirst
from zerosim.core.extents import Extent
from zerosim.core.sharding import split
from zerosim.plan.cluster import Cluster
from zerosim.plan.fluid import FluidProgram, Links, ReceiveFrom, Transfer, last_end_ns


def written_ns(collective: Callable[..., None], elements: int, itemsize: int, cluster: Cluster, ranks: int) -> int:
    """The end of a collective on chunks of a vector, at the last rank; all ranks begin at 0."""
    return last_end_ns(programs(collective, elements, np.dtype(f"V{itemsize}"), ranks), links(cluster, ranks))


def programs(collective: Callable[..., None], elements: int, dtype: Any, ranks: int) -> list[FluidProgram]:
    """The sends and receives of each rank in order, found by running the collective on shapes on each rank alone."""
    chunks = split(Extent(elements, dtype), ranks)
    sends_of_ranks = [NotedSends(rank, ranks) for rank in range(ranks)]
    for noting in sends_of_ranks:
        collective(noting, chunks)
    return [noting.program for noting in sends_of_ranks]


class NotedSends(SendsFirst):
    """A communicator that records its rank's sends and receives; nothing arrives."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.program: FluidProgram = []

    def send(self, outgoing: Any, *, to: int) -> None:
        self.program.append(Transfer(to, outgoing.nbytes))

    def recv(self, *, into: Any, source: int, reduce: Any = None) -> None:
        self.program.append(ReceiveFrom(source))


def links(cluster: Cluster, ranks: int) -> Links:
    """The links of messages: a port of each rank and the cards of each host, all outgoing ones before incoming ones."""
    hosts, inside, between = cluster.hosts(ranks), cluster.inside, cluster.between
    port = (between if cluster.devices_per_host == 1 else inside).bytes_per_second

    def route(source: int, to: int) -> tuple[int, list[int]]:
        one, other, ports = cluster.host(source), cluster.host(to), [source, ranks + to]
        if one == other:
            return inside.latency_ns, ports
        return between.latency_ns, [*ports, 2 * ranks + one, 2 * ranks + hosts + other]

    return Links([*[port] * (2 * ranks), *[between.bytes_per_second] * (2 * hosts)], route)
