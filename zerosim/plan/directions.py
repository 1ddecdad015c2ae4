"""The time of collectives over the directions of a mesh: those on the tape, and those of a pipeline's ends.

Tensor, context and expert ranks do the same, so one stands for all. The step waits for a collective on the tape, as the
model's code does. Tensor ranks are nearest, so inside a host, and a pipeline's farthest; groups side by side share a
host's links. Direct exchanges (an all-to-all) begin all at once: what leaves a host shares its link with the host's
other ranks.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from zerosim.collectives import direct, ring
from zerosim.core.extents import Extent
from zerosim.core.sharding import Directions, parts_of, split
from zerosim.plan.clock import VirtualClock
from zerosim.plan.cluster import Cluster
from zerosim.plan.costs import Costs, Price
from zerosim.plan.fluid import written_ns
from zerosim.plan.sharing import JOINING
from zerosim.training.groups import shift
from zerosim.verdict.shapes import TapeCall, TapeCalls
from zerosim.verdict.traffic import tape_flow


def direction_of(name: str) -> str:
    """The direction of the mesh over which a collective of this name sends.

    >>> [direction_of(name) for name in ("tensor_all_reduce", "send_gradient", "all_gather", "tensor+context_shift")]
    ['tensor', 'pipeline', 'data', 'tensor+context']
    """
    first = name.partition("_")[0]
    if first in ("send", "ends", "pipeline"):
        return "pipeline"
    return first if parts_of(first)[0] in Directions().sizes else "data"


@dataclass(frozen=True, eq=False)
class DirectionCosts:
    """Prices of collectives over the directions of a mesh on `cluster`, computed once for equal calls."""

    directions: Directions
    cluster: Cluster
    copies: int = 1
    """The copies of a token for its experts, of which those for one host leave a host once; 1 if each leaves."""
    _prices: dict[TapeCall, Price] = field(default_factory=dict)

    def seen(self, name: str) -> Cluster:
        """The cluster as a group of a direction sees it."""
        nearest, next_one, *_ = map(self.directions.rank, self.directions.group(name, 0))
        return self.cluster.seen_by(next_one - nearest)

    def price(self, call: TapeCall) -> Price:
        """The price of a collective on the tape, with the bytes and messages of the first place.

        Sums of gradients over context or expert ranks are part of the reduction if the software joins these ranks.
        """
        of_weights = call.collective == "all_reduce" and {*parts_of(call.direction)} <= {*JOINING}
        if of_weights and self.cluster.software.joins_data:
            return Price(0, 0, 0)
        if call not in self._prices:
            flow = tape_flow(call, self.directions, 0)
            self._prices[call] = Price(self._ns(call), flow.sent_bytes, sum(flow.messages.values()))
        return self._prices[call]

    def _ns(self, call: TapeCall) -> int:
        """The time for which the step waits: with `in_chunks`, for the first chunk over tensor ranks alone."""
        cluster, size = self.seen(call.direction), len(self.directions.group(call.direction, 0))
        whole = Extent(call.elements, f"u{call.itemsize}")
        if call.collective == "shift":
            return 0 if call.args[0] % size == 0 else shift_ns(cluster, size, whole.nbytes)
        chunks = split(whole, size)
        if call.collective == "all_to_all":
            whole_ns = all_to_all_ns(cluster, size, chunks[0].nbytes, cluster.expert_slices, self.copies)
            return round(whole_ns * (1 - cluster.software.overlapped))
        halves = ["reduce_scatter", "all_gather"] if call.collective == "all_reduce" else [call.collective]
        costs = Costs(cluster, size, call.itemsize)
        exposed = size if cluster.software.in_chunks and call.direction == "tensor" and len(halves) == 1 else 1
        return sum(costs.price(getattr(ring, half), chunks).ns for half in halves) // exposed


def shift_ns(cluster: Cluster, ranks: int, message_bytes: int) -> int:
    """The time in which each of `ranks` neighbours sends a message to the next one.

    >>> from zerosim.plan.cluster import Device, Link
    >>> cluster = Cluster(Device("", 1, 1, 1), 2, Link("", 10, 1e9), Link("", 10, 1e8), pipelined=True, fused=False)
    >>> shift_ns(cluster, 2, 1000), shift_ns(cluster, 4, 1000)
    (1010, 10010)
    """
    if not cluster.pipelined:
        return written_ns(lambda comm, chunks: shift(comm, chunks[:], 1), message_bytes, 1, cluster, ranks)
    return cluster.slowest(ranks).message_ns(message_bytes)


def all_to_all_ns(cluster: Cluster, ranks: int, chunk_bytes: int, slices: int = 1, copies: int = 1) -> int:
    """The time of an all-to-all of chunks: the slower of what stays inside a host and of what its ranks send elsewhere.

    Chunks for `slices` neighbours in a host are copies of one, which leaves a host once and is all-gathered in the
    other; their sums come back as a reduce-scatter there. Of `copies` of a token for experts at random, those for the
    same host leave once too: of H hosts, H (1 − (1 − 1/H)ᶜ) are expected.

    >>> from zerosim.plan.cluster import Device, Link
    >>> cluster = Cluster(Device("", 1, 1, 1), 2, Link("", 10, 1e9), Link("", 10, 1e9), pipelined=True, fused=False)
    >>> all_to_all_ns(cluster, 2, 1000), all_to_all_ns(cluster, 4, 1000)
    (1010, 4010)
    """
    if not cluster.pipelined:
        return written_ns(lambda comm, chunks: direct.all_to_all(comm, chunks, chunks), ranks * chunk_bytes, 1,
                          cluster, ranks)
    near = min(cluster.devices_per_host, ranks)
    inside = cluster.inside.message_ns((near - 1) * chunk_bytes)
    if near == ranks:
        return inside
    there = (ranks - near) * (slices - 1) * chunk_bytes // slices
    hosts, apart = ranks / near, max(copies // slices, 1)
    once = hosts * (1 - (1 - 1 / hosts) ** apart) / apart
    between = cluster.between.message_ns(round(near * (ranks - near) * chunk_bytes * once / slices))
    return max(inside, between) + (cluster.inside.message_ns(there) if there else 0)


class TimedCalls(TapeCalls):
    """The collectives on a tape, each of which takes its time."""

    def __init__(self, costs: DirectionCosts, clock: VirtualClock, run: Callable[..., Any] | None) -> None:
        super().__init__(costs.directions, run)
        self._costs, self._clock = costs, clock

    def add(self, calls: Iterable[TapeCall]) -> None:
        """The step waits for each; the stream, on the links of another direction, goes on."""
        clock = self._clock
        for call in calls:
            ns, *sent = self._costs.price(call)
            clock.travel(f"{call.direction}_{call.collective}", "tape", clock.now_ns, clock.now_ns + ns, *sent)
            clock.wait(clock.now_ns + ns)
