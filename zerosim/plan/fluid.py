"""The times of messages on a cluster, one by one, as the code of a collective sends them over links that they share.

The rate of each message changes when another one begins or ends.

    program     the sends and receives of a rank, in order
    capacity    bytes per second of a link, one way
    rate        the max-min fair rate of a message under way. Links are filled in turn, beginning with the link that
                has least capacity per message; among equal claims, messages with less latency get proportionally more

The messages of a rank leave one after the other, each when the previous one has arrived. Bytes begin to flow after the
latency. This is SimGrid's model CM02 (Casanova and Marchal, "A network model for simulation of grid applications",
2002; Velho, Schnorr, Casanova and Legrand, "On the validity of flow-level TCP network models", 2013).
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from zerosim.core.allocation import Array
from zerosim.core.errors import Deadlock
from zerosim.core.extents import Extent
from zerosim.core.sharding import split
from zerosim.plan.cluster import NS, Cluster
from zerosim.verdict.flows import LoneRank, ReceiveFrom, Transfer

TOGETHER = 1e-12
"""Messages whose ends differ by less than this share of the present time end together."""


FluidProgram = Sequence[Transfer | ReceiveFrom]
"""The sends and receives of a rank, which sends one message at a time."""


class Links(NamedTuple):
    """The capacities of all links, and the route of each message."""

    capacities: list[float]
    route: Callable[[int, int], tuple[int, list[int]]]
    """`route(source, to)` returns a message's latency in nanoseconds and the numbers of its links."""


@dataclass(eq=False)
class Underway:
    """A message under way: its remaining latency, then its remaining bytes."""

    source: int
    to: int
    latency_ns: float
    left: float
    weight: float
    links: list[int]


def last_end_ns(programs: list[FluidProgram], links: Links) -> int:
    """The end of the last rank's program; all begin at 0. Raises `Deadlock` if a program does not end.

    >>> one = Links([1e9, 1e9], lambda source, to: (1000, [source]))
    >>> last_end_ns([[Transfer(1, 500)], [ReceiveFrom(0)]], one)
    1500
    """
    state = FluidState([deque(program) for program in programs], links)
    while state.advance():
        pass
    waiting = [rank for rank, program in enumerate(state.programs) if program]
    if waiting:
        raise Deadlock(f"rank {waiting[0]} waits for a message that no rank sends")
    return round(state.ended_ns)


@dataclass(eq=False)
class FluidState:
    programs: list[deque[Transfer | ReceiveFrom]]
    links: Links
    now_ns: float = 0.0
    flows: list[Underway] = field(default_factory=list)
    arrived: Counter[tuple[int, int]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.waiting, self.busy = defaultdict[int, deque[Transfer]](deque), set[int]()
        self.ended_ns = 0.0
        self.capacities = np.array(self.links.capacities, np.float64)
        self._runnable = set(range(len(self.programs)))

    def advance(self) -> bool:
        """Advance to the next arrival of a message or end of a latency; return whether there was one."""
        for rank in self._runnable:
            self._run(rank)
        self._runnable.clear()
        if not self.flows:
            return False
        rates = self._rates()
        left = np.array([flow.latency_ns or flow.left * NS for flow in self.flows])
        speed = np.array([1.0 if flow.latency_ns else rate for flow, rate in zip(self.flows, rates, strict=True)])
        needed = left / speed
        passed = needed.min()
        self.now_ns += passed
        ended = needed <= passed + TOGETHER * self.now_ns
        flowing = []
        for flow, rate, ends in zip(self.flows, rates, ended, strict=True):
            if flow.latency_ns:
                flow.latency_ns = 0 if ends else flow.latency_ns - passed
            else:
                flow.left = 0 if ends else flow.left - rate * passed / NS
            if flow.latency_ns or flow.left:
                flowing.append(flow)
            else:
                self.busy.discard(flow.source)
                self.arrived[flow.source, flow.to] += 1
                self._runnable |= {flow.to, flow.source}
        self.flows = flowing
        for rank in list(self._runnable):
            self._begin_next(rank)
        return True

    def _run(self, rank: int) -> None:
        program = self.programs[rank]
        while program:
            following = program[0]
            if isinstance(following, Transfer):
                self.waiting[rank].append(following)
                self._begin_next(rank)
            elif self.arrived[following.source, rank]:
                self.arrived[following.source, rank] -= 1
            else:
                return
            program.popleft()
            self.ended_ns = self.now_ns

    def _begin_next(self, rank: int) -> None:
        if rank in self.busy or not self.waiting[rank]:
            return
        message = self.waiting[rank].popleft()
        latency, links = self.links.route(rank, message.to)
        self.busy.add(rank)
        self.flows.append(
            Underway(rank, message.to, latency, message.bytes, NS / latency if latency else 1.0, links))

    def _rates(self) -> Array:
        """The rate of each flow, by filling links; 0 during its latency."""
        rates = np.zeros(len(self.flows))
        active = np.array([not flow.latency_ns for flow in self.flows])
        numbers = np.flatnonzero(active)
        if not len(numbers):
            return rates
        flow_of = np.array([number for number in numbers for _ in self.flows[number].links])
        link_of = np.array([link for number in numbers for link in self.flows[number].links])
        weight_of = np.array([flow.weight for flow in self.flows])
        spare, unset = self.capacities.copy(), active.copy()
        while unset.any():
            uses = unset[flow_of]
            claimed = np.bincount(link_of[uses], weight_of[flow_of[uses]], minlength=len(spare))
            with np.errstate(divide="ignore", invalid="ignore"):
                fair = np.where(claimed > 0, spare / claimed, np.inf)
            least = fair.min()
            full = fair <= least * (1 + TOGETHER)
            filled = np.zeros_like(unset)
            filled[flow_of[uses & full[link_of]]] = True
            rates[filled] = least * weight_of[filled]
            taken = filled[flow_of]
            spare -= np.bincount(link_of[taken], rates[flow_of[taken]], minlength=len(spare))
            spare = np.maximum(spare, 0.0)
            unset &= ~filled
        return rates


def written_ns(collective: Callable[..., None], elements: int, itemsize: int, cluster: Cluster, ranks: int) -> int:
    """The end of a collective on chunks of a vector, at the last rank; all ranks begin at 0."""
    return last_end_ns(programs(collective, elements, np.dtype(f"V{itemsize}"), ranks), links(cluster, ranks))


def programs(collective: Callable[..., None], elements: int, dtype: Any, ranks: int) -> list[FluidProgram]:
    """The sends and receives of each rank in order, found by running the collective on shapes on each rank alone."""
    chunks, alone = split(Extent(elements, dtype), ranks), [LoneRank(rank, ranks) for rank in range(ranks)]
    for rank in alone:
        collective(rank, chunks)
    return [rank.program for rank in alone]


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
