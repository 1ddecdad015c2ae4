"""The times of messages on a cluster, one by one, as the code of a collective sends them over the links.

    port      a rank's own link, each way: messages leave it one after the other, each when the previous one has arrived
    at once   of several exchanges, each uses the next port of both ranks
    cards     a host's links to other hosts, each way; its ranks share them
    leaf      a switch between hosts, with links to other leaves; see `Fabric`
    message   begins when it is sent and the port is free; takes its latency, then its bytes at the rate of its links

A send does not wait; an exchange ends when its incoming message has arrived. `Lockstep` holds the clocks of all ranks
as a vector, in fractions of a nanosecond: with whole nanoseconds, a hundred short messages would be off by fifty. It
is exact if messages that share a link begin together and have equal lengths; otherwise it raises `Unlike`, and `fluid`
follows every message.

A port is busy until its message has arrived. So a rank's messages leave in order, an exchange of equal messages takes
latency plus bytes over bandwidth, and SimGrid answers the same question.

Fractions of a nanosecond are whole 1,024ths. With rounding to nanoseconds, 64 short messages of a ring were off by
half a nanosecond each, 6 · 10⁻⁵ of SimGrid's time. In 1,024ths sums are exact, so messages that begin together are
still recognised; only the end is rounded.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from zerosim.core.allocation import Array
from zerosim.core.comm import Exchange, SendsFirst
from zerosim.core.errors import Unlike
from zerosim.core.extents import Extent
from zerosim.core.sharding import split
from zerosim.plan.cluster import NS, Cluster
from zerosim.plan.fluid import FluidProgram, Links, ReceiveFrom, Transfer, last_end_ns
from zerosim.plan.topologies import Torus
from zerosim.worlds.lockstep import LockstepChunks, LockstepMessages, LockstepWorld

TICKS = 1024
"""Ticks per nanosecond. Sums of whole ticks are exact for two hours, so equal times compare equal."""


class Lockstep:
    """The clocks of all ranks, which may have begun at different times.

    >>> from zerosim.collectives import ring
    >>> from zerosim.plan.cluster import Device, Link
    >>> link = Link("", 1000, 10**9)
    >>> cluster = Cluster(Device("", 1, 1, 1), 8, link, link, pipelined=False, fused=False)
    >>> clocks = Lockstep(cluster, 4)
    >>> _ = LockstepWorld(4, clocks).run(lambda comm: ring.all_gather(comm, LockstepChunks(4000, 4, np.uint8)))
    >>> clocks.now_ns.tolist()
    [6000, 6000, 6000, 6000]
    """

    def __init__(self, cluster: Cluster, ranks: int) -> None:
        self._now = np.zeros(ranks)
        self._port_free = np.zeros((cluster.ports, ranks))
        self._arrived = np.zeros((cluster.ports, ranks))
        self._host = np.arange(ranks) // cluster.devices_per_host
        local, cards = np.arange(ranks) % cluster.devices_per_host, cluster.fabric.cards
        self._card = self._host * cards + local % cards
        self._leaf = np.array([cluster.fabric.leaf(*divmod(int(card), cards)) for card in self._card])
        self._cluster = cluster
        self._seen: dict[tuple[int, int], MessageTimes] = {}

    @property
    def now_ns(self) -> Array:
        """The clock of every rank, to the nearest nanosecond."""
        return np.rint(self._now).astype(np.int64)

    def exchange(self, at_once: Sequence[LockstepMessages]) -> None:
        if self._cluster.fabric.torus is not None and len(at_once) > 1:
            raise Unlike("messages of several ports share the links of a torus")
        ends = [self._send(number % self._cluster.ports, each.to, each.sent_bytes)[each.source]
                for number, each in enumerate(at_once)]
        self._now = np.maximum.reduce([self._now, *ends])

    def _send(self, port: int, to: Array, sent_bytes: Array) -> Array:
        """The ends of one message of every rank, which begins when it is sent and the port is free."""
        way = self._way(to, sent_bytes)
        begin = np.maximum(self._now, self._port_free[port])
        if way.shared is not None and np.ptp(begin[way.shared]):
            raise Unlike("messages that share a link start at different times")
        if (self._arrived[port, to] > begin + way.latency_ns).any():
            raise Unlike("a message is sent to a rank before an earlier one has arrived")
        end: Array = begin + way.message_ns
        self._arrived[port, to] = end
        self._port_free[port] = end
        return end

    def _way(self, to: Array, sent_bytes: Array) -> "MessageTimes":
        """The times of an exchange's messages, cached by the ids of the arrays, which the entry keeps alive."""
        key = id(to), id(sent_bytes)
        if key not in self._seen:
            self._seen[key] = self._found(to, sent_bytes)
        return self._seen[key]

    def _found(self, to: Array, sent_bytes: Array) -> "MessageTimes":
        cluster, away = self._cluster, self._host != self._host[to]
        if cluster.fabric.torus is not None:
            return self._found_on(cluster.fabric.torus, to, sent_bytes)
        if (away & (self._leaf != self._leaf[to])).any():
            raise Unlike("messages pass from leaf to leaf")
        latency = np.where(away, cluster.between.latency_ns, cluster.inside.latency_ns)
        rate = np.full(len(to), cluster.port_bytes_per_second)
        cards = (int(self._host[-1]) + 1) * cluster.fabric.cards
        leaving = np.bincount(self._card[away], minlength=cards)
        entering = np.bincount(self._card[to][away], minlength=cards)
        sharing = np.maximum(leaving[self._card], entering[self._card[to]])
        rate[away] = np.minimum(rate[away], cluster.card_bytes_per_second / sharing[away])
        several = bool((sharing[away] > 1).any())
        if several and np.ptp(sent_bytes[away]):
            raise Unlike("messages that share a link are not equally long")
        message = latency + np.rint(sent_bytes * (NS / rate) * TICKS) / TICKS
        return MessageTimes(latency, message, away if several else None, (to, sent_bytes))

    def _found_on(self, torus: Torus, to: Array, sent_bytes: Array) -> "MessageTimes":
        """The times on a torus if all messages are alike: as long, as many hops, and links that are shared by as many.
        """
        link, paths = self._cluster.inside, [torus.path(rank, int(each)) for rank, each in enumerate(to)]
        hops, passed = np.array([len(path) for path in paths]), np.bincount([each for path in paths for each in path])
        sharing = np.array([max(passed[path]) for path in paths])
        if np.ptp(hops) or np.ptp(sent_bytes) or np.ptp(sharing):
            raise Unlike("messages pass different numbers of links, or links that others share")
        message = hops * link.latency_ns + np.rint(sent_bytes * (sharing * NS / link.bytes_per_second) * TICKS) / TICKS
        return MessageTimes(hops * link.latency_ns, message, hops > 0, (to, sent_bytes))


@dataclass(frozen=True)
class MessageTimes:
    """The time of each rank's message in an exchange."""

    latency_ns: Array
    message_ns: Array
    shared: Array | None
    """Which messages share links with others; None if no messages do."""
    found_for: tuple[Array, Array]


def written_ns(collective: Callable[..., None], elements: int, itemsize: int, cluster: Cluster, ranks: int) -> int:
    """The end of a collective on chunks of a vector, at the last rank; all ranks begin at 0."""
    dtype = np.dtype(f"V{itemsize}")
    clocks = Lockstep(cluster, ranks)
    try:
        LockstepWorld(ranks, clocks).run(lambda comm: collective(comm, LockstepChunks(elements, ranks, dtype)))
    except Unlike:
        return last_end_ns(programs(collective, elements, dtype, ranks), links(cluster, ranks))
    return int(clocks.now_ns.max())


def programs(collective: Callable[..., None], elements: int, dtype: Any, ranks: int) -> list[FluidProgram]:
    """The sends and receives of each rank in order, found by running the collective on shapes on each rank alone."""
    chunks = split(Extent(elements, dtype), ranks)
    found = [NotedSends(rank, ranks) for rank in range(ranks)]
    for noting in found:
        collective(noting, chunks)
    return [noting.program for noting in found]


class NotedSends(SendsFirst):
    """A communicator that records its rank's sends and receives; nothing arrives."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.program: FluidProgram = []

    def exchange_all(self, exchanges: Sequence[Exchange]) -> None:
        began = len(self.program)
        super().exchange_all(exchanges)
        for number, each in enumerate(exchanges):
            self.program[began + number] = Transfer(each.to, each.outgoing.nbytes, port=number)

    def send(self, outgoing: Any, *, to: int) -> None:
        self.program.append(Transfer(to, outgoing.nbytes))

    def recv(self, *, into: Any, source: int, reduce: Any = None) -> None:
        self.program.append(ReceiveFrom(source))


@dataclass(frozen=True)
class ClusterLinks:
    """The links of a cluster that messages use: ports; between hosts also cards; between leaves also uplinks, or the
    links of a dragonfly. A torus has its own links only.
    """

    cluster: Cluster
    ranks: int

    def capacities(self) -> list[float]:
        """Bytes per second of ports, cards and uplinks; of each kind, all outgoing links precede all incoming ones."""
        cluster, hosts = self.cluster, self.cluster.hosts(self.ranks)
        uplink = cluster.fabric.uplink_bytes_per_second(hosts, cluster.between.bytes_per_second)
        if cluster.fabric.torus is not None:
            return [cluster.inside.bytes_per_second] * cluster.fabric.torus.links
        dragonfly = cluster.fabric.dragonfly
        crossed = 2 * cluster.fabric.leaves(hosts) if dragonfly is None else dragonfly.links
        return [
            *[cluster.port_bytes_per_second] * (2 * self.ranks * cluster.ports),
            *[cluster.card_bytes_per_second] * (2 * hosts * cluster.fabric.cards),
            *[uplink] * crossed,
        ]

    def route(self, source: int, to: int, port: int) -> tuple[int, list[int]]:
        """The latency of a message, and the numbers of its links; it leaves and enters by the same port."""
        if self.cluster.fabric.torus is not None:
            path = self.cluster.fabric.torus.path(source, to)
            return len(path) * self.cluster.inside.latency_ns, path
        ports = [rank * self.cluster.ports + port % self.cluster.ports for rank in (source, self.ranks + to)]
        one, other = self.cluster.host(source), self.cluster.host(to)
        if one == other:
            return self.cluster.inside.latency_ns, ports
        fabric, hosts = self.cluster.fabric, self.cluster.hosts(self.ranks)
        first, cards = 2 * self.ranks * self.cluster.ports, hosts * fabric.cards
        leaving, entering = (rank % self.cluster.devices_per_host % fabric.cards for rank in (source, to))
        passed = [*ports, first + one * fabric.cards + leaving, first + cards + other * fabric.cards + entering]
        near, far = fabric.leaf(one, leaving), fabric.leaf(other, entering)
        if fabric.dragonfly is not None:
            passed += [first + 2 * cards + link for link in fabric.dragonfly.path(one, other)] if near != far else []
        elif near != far:
            passed += [first + 2 * cards + near, first + 2 * cards + fabric.leaves(hosts) + far]
        return self.cluster.between.latency_ns, passed


def links(cluster: Cluster, ranks: int) -> Links:
    found = ClusterLinks(cluster, ranks)
    return Links(found.capacities(), found.route, cluster.ports)
