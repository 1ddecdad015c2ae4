"""The messages that leave a host, by formula: the receivers of a rank in each collective, and the hosts of these ranks.

    peers     the ranks of a communicator to which a rank sends, with the number of chunks for each in one walk
    leaving   the number of these chunks that go to ranks on other hosts

In every walk a rank sends all chunks but one. The formulas are derived from the definitions of the collectives, as in
`traffic`; nothing here observes a run.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from zerosim.collectives.tree import halvings

Peers = Callable[[int, int], dict[int, int]]
"""`peers(place, size)`"""


def ring(place: int, size: int) -> dict[int, int]:
    """All chunks but one to the right neighbour."""
    return {(place + 1) % size: size - 1}


def everyone(place: int, size: int) -> dict[int, int]:
    """One chunk to each other rank."""
    return {other: 1 for other in range(size) if other != place}


def partners(place: int, size: int) -> dict[int, int]:
    """Half of the chunks to the nearest partner, a quarter to the next one, and so on.

    >>> partners(place=1, size=8)
    {0: 4, 3: 2, 5: 1}
    """
    return {place ^ (1 << step): size >> (step + 1) for step in range(size.bit_length() - 1)}


def two_level(per_host: int, place: int, size: int) -> dict[int, int]:
    """Chunks to the right neighbour within the host, then to the rank of the same place on the next host.

    >>> two_level(2, place=1, size=6)
    {0: 3, 3: 2}
    """
    full = min(per_host, size)
    first, hosts = place // full * full, size // full
    found = Counter({first + (place - first + 1) % full: hosts * (full - 1)})
    return dict(found + Counter({(place + full) % size: hosts - 1}))


def two_hops(per_host: int, place: int, size: int) -> dict[int, int]:
    """Chunks to every other rank of the host, then to the ranks of the same place on the other hosts.

    >>> two_hops(2, place=1, size=6)
    {0: 3, 3: 1, 5: 1}
    """
    full = min(per_host, size)
    first, hosts = place // full * full, size // full
    return {
        **{other: hosts for other in range(first, first + full) if other != place},
        **{other: 1 for other in range(place % full, size, full) if other != place},
    }


def tree_from_everyone(place: int, size: int) -> dict[int, int]:
    """Broadcasts down the tree, one chunk from each root in turn.

    >>> tree_from_everyone(place=0, size=4)
    {2: 1, 1: 3}
    """
    found = Counter[int]()
    for root in range(size):
        found.update(far for near, far, _ in halvings(place, size, root) if near == place)
    return dict(found)


REDUCE_SCATTER: dict[str, Peers] = {"ring": ring, "rank": everyone, "tree": partners, "exact": ring}
"""The peers of each order of addition; those of `two_level` depend on the ranks of a host."""


def reducing(order: str, per_host: int) -> Peers:
    """The peers of a reduce-scatter in this order of addition."""
    levels = two_hops if order == "two_hop" else two_level
    return REDUCE_SCATTER.get(order) or partial(levels, per_host)


def gathering(order: str, per_host: int) -> Peers:
    """The peers of the all-gather that belongs to this order."""
    return ring if order in REDUCE_SCATTER else partial(two_level, per_host)


def leaving(peers: Peers, ranks: Sequence[int], rank: int, hosts: Sequence[int]) -> int:
    """The chunks that `rank` sends to other hosts in a collective of `ranks`; 0 if hosts are unknown.

    >>> leaving(ring, [0, 1, 2, 3], 1, hosts=[0, 0, 1, 1]), leaving(ring, [0, 1, 2, 3], 0, hosts=[0, 0, 1, 1])
    (3, 0)
    """
    if not hosts:
        return 0
    sent = peers(ranks.index(rank), len(ranks))
    return sum(chunks for peer, chunks in sent.items() if hosts[ranks[peer]] != hosts[rank])
