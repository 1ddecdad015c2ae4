"""The number of steps of an algorithm: each rank sends one message and receives one per step, all equally long."""

from collections.abc import Sequence

from zerosim.collectives.folding import extra
from zerosim.collectives.two_level import in_two_hops


def log2(size: int) -> int:
    """⌈log2 size⌉.

    >>> [log2(size) for size in (1, 2, 5, 8)]
    [0, 1, 3, 3]
    """
    return (size - 1).bit_length()


def folding(steps: int, size: int) -> int:
    """`steps` for each doubling of the ranks that remain after folding, and one to fold and one to unfold."""
    return steps * (size.bit_length() - 1) + 2 * bool(extra(size))


def two_level(size: int, per_host: int) -> int:
    """N − 1 if all hosts are full; more if the last one is short, since its ranks stand in for those that it lacks.

    >>> [two_level(size, 2) for size in (4, 5)]
    [3, 7]
    """
    full = min(per_host, size)
    hosts, last = -(-size // full), (size - 1) % full + 1
    times = -(-full // last)
    return max(hosts * (full - 1), hosts * times * (last - 1)) + times * (hosts - 1)


def two_hop(size: int, per_host: int) -> int:
    """The steps of an all-to-all within the host for each row, one row after the other, and then of one between hosts.

    >>> [two_hop(size, per_host) for size, per_host in ((4, 2), (6, 3), (8, 4), (12, 4), (5, 2))]
    [3, 7, 10, 16, 8]
    """
    members, hosts = min(per_host, size), -(-size // per_host)
    if hosts > 1 and size % per_host:
        return two_hop_with_a_short_host(size, per_host)
    within, between = (max(0, 2 * count - 3) for count in (members, hosts))
    return within + (hosts - 1) * (members if members > 2 else members - 1) + between


def two_hop_with_a_short_host(size: int, per_host: int) -> int:
    """The steps if the last host has fewer ranks, counted one by one: each of its ranks stands in for several."""
    levels, now = in_two_hops(per_host), [0] * size
    hosts = levels.hosts(size)
    for ranks in hosts:
        for _ in range(len(hosts) * -(-per_host // len(ranks))):
            meet(now, ranks)
    for place in range(per_host):
        meet(now, levels.ranks(size, place))
    return max(now)


def meet(now: list[int], ranks: Sequence[int]) -> None:
    """Advance the step counts of these ranks by an exchange between every two of them, as in `direct.reduce_scatter`.

    >>> now = [0, 0, 5, 0]
    >>> meet(now, [0, 1, 3])
    >>> now
    [2, 3, 5, 3]
    """
    for turn in range(1, 2 * len(ranks) - 2):
        for first in range(max(0, turn - len(ranks) + 1), (turn + 1) // 2):
            pair = ranks[first], ranks[turn - first]
            now[pair[0]] = now[pair[1]] = max(now[pair[0]], now[pair[1]]) + 1
