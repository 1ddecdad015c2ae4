"""The messages that each rank sends in each algorithm, and the number of steps of an algorithm.

    rank, size, root    the sender, the number of ranks, and the rank that has or gets the whole
    a message           the numbers of its chunks; all of them for a whole vector
    a step              each rank sends one message and receives one, all equally long

Volumes are declared here and counted on the wire in the tests. The bytes of a message are those of its chunks, so the
figures are exact for vectors of any length.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from zerosim.collectives.folding import extra, members
from zerosim.collectives.pairs import aligned, far_first, near_first
from zerosim.collectives.rabenseifner import meetings
from zerosim.collectives.tree import halvings
from zerosim.collectives.two_level import in_two_hops

Messages = list[Sequence[int]]
Volume = Callable[[int, int, int], Messages]


def all_but_own(rank: int, size: int, root: int) -> Messages:
    """Every chunk but the rank's own, each in one message.

    >>> all_but_own(rank=1, size=4, root=0)
    [[0], [2], [3]]
    """
    return [[chunk] for chunk in range(size) if chunk != rank]


def all_but_next(rank: int, size: int, root: int) -> Messages:
    """Every chunk but the right neighbour's."""
    return [[chunk] for chunk in range(size) if chunk != (rank + 1) % size]


def own_to_all(rank: int, size: int, root: int) -> Messages:
    """Its own chunk to every other rank."""
    return [[rank]] * (size - 1)


def whole_from_root(rank: int, size: int, root: int) -> Messages:
    """The whole vector to every other rank, by the root."""
    return [range(size)] * (size - 1) if rank == root else []


def whole_to_root(rank: int, size: int, root: int) -> Messages:
    """The whole vector, by every rank but the root."""
    return [range(size)] if rank != root else []


def chunks_from_root(rank: int, size: int, root: int) -> Messages:
    """Every rank's chunk, by the root."""
    return all_but_own(rank, size, root) if rank == root else []


def own_to_root(rank: int, size: int, root: int) -> Messages:
    """Its own chunk, by every rank but the root."""
    return [[rank]] if rank != root else []


def whole_down_the_tree(rank: int, size: int, root: int) -> Messages:
    """The whole vector, for each half that the rank serves."""
    return [range(size) for near, _, _ in halvings(rank, size, root) if rank == near]


def whole_up_the_tree(rank: int, size: int, root: int) -> Messages:
    """The whole vector, once, by every rank but the root."""
    return [range(size) for _, far, _ in halvings(rank, size, root) if rank == far]


def halves_down_the_tree(rank: int, size: int, root: int) -> Messages:
    """Each half that the rank serves.

    >>> halves_down_the_tree(rank=0, size=6, root=0)
    [range(4, 6), range(2, 4), range(1, 2)]
    """
    return [range(size)[half] for near, _, half in halvings(rank, size, root) if rank == near]


def halves_up_the_tree(rank: int, size: int, root: int) -> Messages:
    """The half of which the rank is the root, by every rank but the root of all."""
    return [range(size)[half] for _, far, half in halvings(rank, size, root) if rank == far]


def far_halves(rank: int, size: int, root: int) -> Messages:
    """The half that the partner keeps, the farthest partner first."""
    return [aligned(range(size), rank ^ half, half, size) for half in far_first(size)]


def doubled_runs(rank: int, size: int, root: int) -> Messages:
    """All chunks that the rank holds, twice as many in each message."""
    return [aligned(range(size), rank, length, size) for length in near_first(size)]


def rotated_runs(rank: int, size: int, root: int) -> Messages:
    """All chunks that the rank holds; in the last step only the missing ones.

    >>> rotated_runs(rank=4, size=5, root=0)
    [[4], [4, 0], [4]]
    """
    return [
        [(rank + chunk) % size for chunk in range(min(held, size - held))]
        for held in near_first(size)
    ]


def folded_whole(rank: int, size: int, root: int) -> Messages:
    """The whole vector to every partner, and to the neighbour with which it folds."""
    partners = list(near_first(len(members(size)))) if rank in members(size) else []
    return [range(size)] * (len(partners) + folds(rank, size))


def folded_halves(rank: int, size: int, root: int) -> Messages:
    """Half of the vector to every partner, later the rank's own part, and the whole to the neighbour with which it
    folds."""
    swapped: Messages = []
    for _, theirs, mine in meetings(rank, size, range(size)):
        swapped += [theirs, mine]
    return swapped + [range(size)] * folds(rank, size)


def folds(rank: int, size: int) -> int:
    """1 if the rank sends its whole vector, or the result, to a neighbour; else 0."""
    return int(rank < 2 * extra(size))


def one_after_the_other(*volumes: Volume) -> Volume:
    """The messages of several volumes in sequence, with rank 0 as the root.

    >>> one_after_the_other(own_to_root, chunks_from_root)(0, 3, 0)
    [[1], [2]]
    """

    def messages(rank: int, size: int, root: int) -> Messages:
        return [message for volume in volumes for message in volume(rank, size, 0)]

    return messages


@dataclass(frozen=True)
class TwoLevels:
    """The messages of `rank` on hosts of `per_host` ranks; a message to a missing rank has no chunk.

    >>> TwoLevels(2).reduced(rank=0, size=4, root=0), TwoLevels(2).gathered(rank=0, size=4, root=0)
    ([[1], [3], [2]], [[0], [0], [2]])
    """

    per_host: int

    def reduced(self, rank: int, size: int, root: int) -> Messages:
        """Every chunk but those of the rank's places, then those of its places except its own host's."""
        place, members, hosts = self._where(rank, size)
        away: Messages = [
            self._chunk(host, other, size) for host in range(hosts) for other in self._seats(members, size)
            if other % members != place]
        across = [self._chunk(host, mine, size) for mine in range(place, min(self.per_host, size), members)
                  for host in range(hosts) if host != rank // self.per_host]
        return away + across

    def gathered(self, rank: int, size: int, root: int) -> Messages:
        """All chunks of its places but the next host's, then every chunk but those of the next rank of its host."""
        place, members, hosts = self._where(rank, size)
        across: Messages = [
            self._chunk(host, mine, size) for mine in range(place, min(self.per_host, size), members)
            for host in range(hosts) if host != (rank // self.per_host + 1) % hosts]
        around = [self._chunk(host, other, size) for host in range(hosts) for other in self._seats(members, size)
                  if other % members != (place + 1) % members]
        return across + around

    def broadcast(self, rank: int, size: int, root: int) -> Messages:
        """The whole vector, for each half of the hosts and then of its host's ranks that the rank serves."""
        place, members, hosts = self._where(rank, size)
        mine, source = rank // self.per_host, root % self.per_host
        served = [near == mine for near, _, _ in halvings(mine, hosts, root // self.per_host)]
        between = sum(served) if place == source % members else 0
        within = sum(near == place for near, _, _ in halvings(place, members, source % members))
        return [range(size)] * (between + within)

    def _where(self, rank: int, size: int) -> tuple[int, int, int]:
        """The rank's place, the ranks of its host, and the number of hosts."""
        first = rank // self.per_host * self.per_host
        return rank - first, min(self.per_host, size - first), -(-size // self.per_host)

    def _seats(self, members: int, size: int) -> range:
        """The places of a host with `members` ranks, rounded up to a multiple of `members`."""
        return range(-(-min(self.per_host, size) // members) * members)

    def _chunk(self, host: int, place: int, size: int) -> list[int]:
        number = host * self.per_host + place
        return [number] if place < self.per_host and number < size else []


def empty(rank: int, size: int, root: int) -> Messages:
    """Nothing, in ⌈log2 size⌉ messages."""
    return [[] for _ in near_first(size)]


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
