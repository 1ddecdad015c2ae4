"""Orders of addition, declared: each is a function that adds the contributions of all ranks in that order.

    contributions   each rank's contribution to one chunk, in rank order
    chunk           the number of that chunk, which only some orders use

Floating-point addition commutes but is not associative, so the order is part of every result. The functions add
any objects with `+` (arrays, numbers, symbols): the reference sums with them, proofs compare with them, reports
print them. They send nothing and import no world.

Collectives do not read these declarations. Proofs on symbols show that each collective follows the one that its row
in the table names; a shared function would make that comparison empty.

`tree` requires powers of two, of ranks and of micro-batches. Only then does the aligned tree over micro-batches cut
between ranks, so that the bits do not depend on the number of ranks. One exception remains in `tree` and `exact`:
clipping. The norm is added chunk by chunk, and chunks depend on the number of ranks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from zerosim.core.fixed_point import exact_sum
from zerosim.core.sharding import Mesh, bounds, padded

AddingOrder = Callable[..., Any]
"""`order(contributions, chunk)`; orders of collectives that send chunks one by one also take `arrives`."""

Arrives = Callable[[Any, int], Any]
"""`arrives(sent, sender)` returns the received values of sent ones; the sender is a number among the contributions."""


def unchanged(sent: Any, sender: int) -> Any:
    """The default `arrives`: sums are received as they were sent."""
    return sent


def ring(contributions: Sequence[Any], chunk: int, arrives: Arrives = unchanged) -> Any:
    """((g[c+1] + g[c+2]) + …) + g[c], indices modulo the number of ranks: the owner comes last.

    Each partial sum is sent, by the rank that has added to it last.

    >>> ring(["a", "b", "c"], 0), ring(["a", "b", "c"], 0, lambda sent, sender: f"({sent} of {sender})")
    ('bca', '((b of 1)c of 2)a')
    """
    size = len(contributions)
    total = contributions[(chunk + 1) % size]
    for distance in range(2, size + 1):
        total = arrives(total, (chunk + distance - 1) % size) + contributions[(chunk + distance) % size]
    return total


def rank_order(contributions: Sequence[Any], chunk: int, arrives: Arrives = unchanged) -> Any:
    """((g[0] + g[1]) + g[2]) + …: left to right.

    Every contribution but the owner's is sent.

    >>> rank_order(["a", "b", "c"], 0), rank_order(["a", "b", "c"], 0, lambda sent, sender: f"({sent} of {sender})")
    ('abc', 'a(b of 1)(c of 2)')
    """
    total, *others = (term if rank == chunk else arrives(term, rank) for rank, term in enumerate(contributions))
    for contribution in others:
        total = total + contribution
    return total


def two_level(per_host: int, order: AddingOrder = ring) -> AddingOrder:
    """Each host's ranks in an order, then the hosts' sums in it; in rings the chunk's owner, and its host, come last.

    A host's sum is sent by the rank of the chunk's place, or by the rank that stands in for it there.

    >>> from zerosim.core.terms import Term
    >>> [two_level(2, order)([Term(rank) for rank in range(5)], 0) for order in (ring, rank_order)]
    [(((g3 + g2) + g4) + (g1 + g0)), (((g0 + g1) + (g2 + g3)) + g4)]
    """

    def two_level(contributions: Sequence[Any], chunk: int, arrives: Arrives = unchanged) -> Any:
        host, place = divmod(chunk, per_host)
        numbers = range(len(contributions))
        hosts = [numbers[first : first + per_host] for first in numbers[::per_host]]
        sums = [
            order([contributions[rank] for rank in ranks], place % len(ranks),
                  lambda sent, sender, ranks=ranks: arrives(sent, ranks[sender]))
            for ranks in hosts
        ]
        return order(sums, host, lambda sent, sender: arrives(sent, hosts[sender][place % len(hosts[sender])]))

    return two_level


def near_tree(contributions: Sequence[Any], chunk: int) -> Any:
    """((g[0] + g[1]) + (g[2] + g[3])) + …: the aligned binary tree, neighbours first.

    Every run of ranks is cut at the largest power of two below its length.

    >>> from zerosim.core.terms import Term
    >>> near_tree([Term(rank) for rank in range(6)], 0)
    (((g0 + g1) + (g2 + g3)) + (g4 + g5))
    """
    if len(contributions) == 1:
        return contributions[0]
    middle = 1 << ((len(contributions) - 1).bit_length() - 1)
    return near_tree(contributions[:middle], chunk) + near_tree(contributions[middle:], chunk)


def folded_tree(contributions: Sequence[Any], chunk: int) -> Any:
    """The near tree over a power of two of sums: the first pairs of ranks are added beforehand.

    There are as many such pairs as there are ranks beyond the largest power of two.

    >>> from zerosim.core.terms import Term
    >>> folded_tree([Term(rank) for rank in range(5)], 0)
    (((g0 + g1) + g2) + (g3 + g4))
    """
    size = len(contributions)
    extra = size - (1 << (size.bit_length() - 1))
    pairs = [contributions[2 * pair] + contributions[2 * pair + 1] for pair in range(extra)]
    return near_tree([*pairs, *contributions[2 * extra :]], chunk)


def far_tree(contributions: Sequence[Any], chunk: int) -> Any:
    """T(c, 1), where T(r, d) = T(r ^ d, 2d) + T(r, 2d) and T(r, size) = g[r]: halves first.

    The number of ranks is a power of two.

    >>> from zerosim.core.terms import Term
    >>> far_tree([Term(rank) for rank in range(4)], 0)
    ((g3 + g1) + (g2 + g0))
    """

    def held(rank: int, distance: int) -> Any:
        if distance == len(contributions):
            return contributions[rank]
        return held(rank ^ distance, 2 * distance) + held(rank, 2 * distance)

    return held(chunk, 1)


@dataclass(frozen=True)
class Order:
    """An order in which the micro-batches of all ranks become one sum, named by `parallel.order`.

    `within` adds a rank's micro-batches, `across` the ranks' sums, chunk by chunk; both are None for an order-free sum.
    """

    words: str
    within: Callable[[Sequence[Any]], Any] | None
    across: AddingOrder | None
    on_hosts: Callable[[int], AddingOrder] | None = None
    """Makes `across` from the number of ranks on a host; None where it does not depend on hosts."""

    def with_hosts(self, ranks_per_host: int) -> "Order":
        """The order for hosts of `ranks_per_host` ranks."""
        return self if self.on_hosts is None else replace(self, across=self.on_hosts(ranks_per_host))

    def total(
        self, contributions: Sequence[Any], mesh: Mesh, wire: npt.DTypeLike | None = None,
        arrives: Arrives | None = None,
    ) -> Any:
        """The sum of flat arrays, one for each micro-batch in the global order; each rank has a block of them.

        Chunk by chunk the ranks of each group add first, and then the groups' sums are added. Before that, a rank's
        sum is rounded to the dtype of the wire, if given. `arrives`, if given, computes from the values that one rank
        sends of a chunk those that another receives; it is for one group of all ranks. All chunks have one length, as
        on ranks: zeros follow the last element, because an order may depend on an element's place in its chunk.

        >>> parts, mesh = [np.array([1.0, 2.0]), np.array([3.0, 4.0])], Mesh(0, 2, 2)
        >>> ORDERS["ring"].total(parts, mesh), ORDERS["exact"].total(parts, mesh)
        (array([4., 6.]), array([4., 6.]))
        """
        if self.within is None or self.across is None:
            return exact_sum(contributions)
        block = len(contributions) // mesh.size
        partials = [self.within(contributions[start : start + block]) for start in range(0, mesh.size * block, block)]
        count = len(partials[0])
        whole = np.zeros(padded(count, mesh.size), wire or partials[0].dtype)
        zeros = whole[count:]
        partials = [np.concatenate([partial.astype(whole.dtype, copy=False), zeros]) for partial in partials]
        for chunk, (start, stop) in enumerate(bounds(len(whole), mesh.size)):
            place, part = divmod(chunk, mesh.replicas)
            terms = [partial[start:stop] for partial in partials]
            groups = [[terms[rank] for rank in ranks] for ranks in mesh.groups]
            across = self.across if arrives is None else partial(self.across, arrives=arrives)
            whole[start:stop] = across([across(group, place) for group in groups], part)
        return whole[:count]


def left_to_right(contributions: Sequence[Any]) -> Any:
    """((g[0] + g[1]) + g[2]) + …, for micro-batches."""
    return rank_order(contributions, 0)


ORDERS: dict[str, Order] = {
    "ring": Order(
        "a rank's micro-batches left to right, then ranks c+1, c+2, …, c for chunk c", left_to_right, ring
    ),
    "rank": Order("a rank's micro-batches left to right, then ranks 0 … N−1", left_to_right, rank_order),
    "tree": Order("an aligned binary tree over all micro-batches", partial(near_tree, chunk=0), near_tree),
    "two_level": Order(
        "a rank's micro-batches left to right, then the ring of each host's ranks, then the ring of the hosts' sums",
        left_to_right, two_level(1), two_level,
    ),
    "two_hop": Order(
        "a rank's micro-batches left to right, then the ranks of each host in order, then the hosts' sums in order",
        left_to_right, two_level(1, rank_order), partial(two_level, order=rank_order),
    ),
    "exact": Order("order-free: fixed point under a common exponent", None, None),
}
