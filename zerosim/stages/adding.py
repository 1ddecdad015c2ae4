"""The orders of addition of stages: first over a rank's micro-batches, then over the ranks.

`core.orders.ORDERS` declares the same orders for the reference. That both agree is proved on symbols for orders,
and on numbers for the sum without order.

With overlap, a sum without order copies gradients while the step continues, so there the peak of gradients is an upper
bound; otherwise it is exact.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from zerosim.autograd.tape import Accumulate, Total, left_to_right
from zerosim.collectives import direct, exact, rabenseifner, ring, tree, two_level
from zerosim.core.allocation import Allocator, Array
from zerosim.core.comm import Communicator
from zerosim.core.sharding import split

ReduceScatter = Callable[..., None]
"""`reduce_scatter(comm, chunks)`, in place."""

Rounding = Callable[[Array], Array]

AddRanks = Callable[[Communicator, Total, Rounding], Array]
"""`add_ranks(comm, total, rounding)` returns a full buffer in which this rank's chunk is the sum of all totals."""


@dataclass(frozen=True)
class Addition:
    """`accumulate` adds a rank's micro-batches to a total; `reduce_scatter` adds the totals of all ranks.

    `reduce_scatter` also takes the rounding of a buffer for the wire, and returns a full buffer in which this rank's
    chunk is the sum. `whole` extracts the full buffer from a total. `collective` is None for sums of integers, which
    have no order. `all_gather` is the corresponding all-gather, and `broadcast` sends one rank's chunk to all.
    """

    accumulate: Accumulate
    reduce_scatter: AddRanks
    whole: Callable[[Total], Array]
    collective: ReduceScatter | None
    all_gather: Callable[..., None] = ring.all_gather
    broadcast: Callable[..., None] = tree.broadcast
    on_hosts: "Callable[[int], Addition] | None" = None
    """The addition for a number of ranks per host, if it depends on that."""

    def with_hosts(self, ranks_per_host: int) -> "Addition":
        """The addition for hosts of `ranks_per_host` ranks."""
        return self if self.on_hosts is None else self.on_hosts(ranks_per_host)

    def by(self, collective: ReduceScatter) -> "Addition":
        """The addition with another collective."""
        return in_order(self.accumulate, collective, self.whole, self.all_gather)


def in_order(
    accumulate: Accumulate, collective: ReduceScatter, whole: Callable[[Total], Array] = lambda total: total,
    all_gather: Callable[..., None] = ring.all_gather,
) -> Addition:
    """An addition by `collective`, which works in place on flat buffers that `whole` extracts from totals.

    By default a total is that buffer itself.
    """

    def reduce_scatter(comm: Communicator, total: Total, rounding: Rounding) -> Array:
        full = rounding(whole(total))
        collective(comm, split(full, comm.size))
        return full

    return Addition(accumulate, reduce_scatter, whole, collective, all_gather)


def add_replicas(
    reduce_scatter: ReduceScatter, all_gather: ReduceScatter = ring.all_gather
) -> Callable[[Communicator, Array], None]:
    """An all-reduce of a chunk over the ranks that hold copies of it, by these two collectives."""

    def all_reduce(comm: Communicator, chunk: Array) -> None:
        parts = split(chunk, comm.size)
        reduce_scatter(comm, parts)
        all_gather(comm, parts)

    return all_reduce


def by_pairs(total: Total, contribution: Array) -> Total:
    """Add halves of equal count first, like the carries of a binary counter: ((g₀ + g₁) + (g₂ + g₃)) + …"""
    halves = total or []
    count = 1
    while halves and halves[-1][0] == count:
        _, left = halves.pop()
        left += contribution
        count, contribution = 2 * count, left
    halves.append((count, contribution))
    return halves


def kept_apart(total: Total, contribution: Array) -> Total:
    """A list of all contributions, which cannot be rounded before all ranks have theirs."""
    return [*(total or []), contribution]


def widening(accumulate: Accumulate, allocate: Allocator) -> Accumulate:
    """`accumulate` in float32; contributions with fewer bits are widened first."""

    def accumulate_widened(total: Total, contribution: Array) -> Total:
        if contribution.dtype == np.float32:
            return accumulate(total, contribution)
        wide = allocate(contribution.shape, np.float32, kind="gradients", owner="accumulation")
        wide[...] = contribution
        return accumulate(total, wide)

    return accumulate_widened


def exact_reduce_scatter(comm: Communicator, total: Total, rounding: Rounding) -> Array:
    chunk = exact.reduce_scatter(comm, total)
    full: Array = total[0]
    split(full, comm.size)[comm.rank][:] = chunk
    return full


def on_hosts(ranks_per_host: int) -> Addition:
    """Addition within hosts first, then between hosts; the all-gather takes the reverse way."""
    hosts = two_level.on_hosts(ranks_per_host)
    return in_order(left_to_right, hosts.reduce_scatter, all_gather=hosts.all_gather)


def in_two_hops(ranks_per_host: int) -> Addition:
    """Addition within hosts and then between hosts, by all-to-all on both levels; the all-gather has rings on both."""
    return on_hosts(ranks_per_host).by(two_level.in_two_hops(ranks_per_host).reduce_scatter)


ADDITIONS: dict[str, Addition] = {
    "ring": in_order(left_to_right, ring.reduce_scatter),
    "rank": in_order(left_to_right, direct.reduce_scatter),
    "tree": in_order(by_pairs, rabenseifner.reduce_scatter, whole=lambda halves: halves[0][1]),
    "two_level": replace(on_hosts(1), on_hosts=on_hosts),
    "two_hop": replace(in_two_hops(1), on_hosts=in_two_hops),
    "exact": Addition(kept_apart, exact_reduce_scatter, whole=lambda contributions: contributions[0], collective=None),
}
