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
        [(rank + chunk) % size for chunk in range(min(known, size - known))]
        for known in near_first(size)
    ]


def folded_whole(rank: int, size: int, root: int) -> Messages:
    """The whole vector to every partner, and to the neighbour with which it folds."""
    partners = list(near_first(len(members(size)))) if rank in members(size) else []
    return [range(size)] * (len(partners) + folds(rank, size))


def folded_halves(rank: int, size: int, root: int) -> Messages:
    """Half of the vector to every partner, later the rank's own part, and the whole to a folding neighbour."""
    swapped: Messages = []
    for _, theirs, ours in meetings(rank, size, range(size)):
        swapped += [theirs, ours]
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
    """The messages of `rank` on hosts of `per_host` ranks.

    >>> TwoLevels(2).reduced(rank=0, size=4, root=0), TwoLevels(2).gathered(rank=0, size=4, root=0)
    ([[1], [3], [2]], [[0], [0], [2]])
    """

    per_host: int

    def reduced(self, rank: int, size: int, root: int) -> Messages:
        """Every chunk but those of the rank's place, then those of its place except its own."""
        place = rank % self.per_host
        away: Messages = [[chunk] for chunk in range(size) if chunk % self.per_host != place]
        return away + [[chunk] for chunk in range(place, size, self.per_host) if chunk != rank]

    def gathered(self, rank: int, size: int, root: int) -> Messages:
        """All chunks of its place but the next host's, then every chunk but those of the next rank of its host."""
        (host, place), hosts = divmod(rank, self.per_host), -(-size // self.per_host)
        after = (place + 1) % min(self.per_host, size)
        across: Messages = [[chunk] for chunk in range(place, size, self.per_host)
                            if chunk // self.per_host != (host + 1) % hosts]
        return across + [[chunk] for chunk in range(size) if chunk % self.per_host != after]

    def broadcast(self, rank: int, size: int, root: int) -> Messages:
        """The whole vector, for each half of the hosts and then of its host's ranks that the rank serves."""
        (host, place), (source, middle) = divmod(rank, self.per_host), divmod(root, self.per_host)
        hosts, members = -(-size // self.per_host), min(self.per_host, size)
        between = sum(near == host for near, _, _ in halvings(host, hosts, source)) if place == middle else 0
        within = sum(near == place for near, _, _ in halvings(place, members, middle))
        return [range(size)] * (between + within)


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


def two_hop(size: int, per_host: int) -> int:
    """The steps of an all-to-all within the host for each row, one row after the other, and then of one between hosts.

    >>> [two_hop(size, per_host) for size, per_host in ((4, 2), (6, 3), (8, 4), (12, 4))]
    [3, 7, 10, 16]
    """
    members, hosts = min(per_host, size), -(-size // per_host)
    within, between = (max(0, 2 * count - 3) for count in (members, hosts))
    return within + (hosts - 1) * (members if members > 2 else members - 1) + between
