"""The table of algorithms: title, cost, supported numbers of ranks, order of addition, source.

    n          the bytes of the whole vector        N = size, the number of ranks
    steps      each rank sends one message and receives one per step, all equally long
    H          N/2, the hosts of two ranks
    rest       1 on one host of two ranks, else 0
    fold       2 where N is no power of two: some ranks fold into their neighbours first, and unfold last

Volumes are declared here and compared with a counting communicator in the tests, to the byte. Orders are declared in
`core/orders.py` and confirmed by proofs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from zerosim.collectives import (
    bruck,
    direct,
    dissemination,
    doubling,
    halving,
    naive,
    rabenseifner,
    ring,
    tree,
    two_level,
    volume,
)
from zerosim.collectives.volume import Volume
from zerosim.core import orders
from zerosim.core.comm import Communicator
from zerosim.core.errors import CollectiveError, did_you_mean
from zerosim.core.parts.loading import Declared

MPI_STANDARD = "MPI: A Message-Passing Interface Standard, chapter Collective Communication"
BRUCK = "Bruck, Ho, Kipnis, Upfal, Weathersby, Efficient algorithms for all-to-all (1997)"
HENSGEN = "Hensgen, Finkel, Manber, Two algorithms for barrier synchronization (1988)"
JOHNSSON = "Johnsson, Ho, Optimum broadcasting in hypercubes (1989)"
MIKAMI = "Mikami et al., Massively distributed SGD: ImageNet in a flash (2018)"
PATARASUK = "Patarasuk, Yuan, Bandwidth optimal all-reduce algorithms (2009)"
RABENSEIFNER = "Rabenseifner, Optimization of collective reduction operations (2004)"
WANG = "Wang et al., ZeRO++ (2023)"
THAKUR = "Thakur, Rabenseifner, Gropp, Optimization of collectives in MPICH (2005)"


@dataclass(frozen=True)
class Algorithm(Declared):
    """An algorithm of one collective.

    `ordered`: ranks are added in rank order, so that an operation need not commute. `order` is None
    where nothing is added.

    >>> ring_all_reduce = ALGORITHMS["ring.all_reduce"]
    >>> ring_all_reduce.steps(4), ring_all_reduce.messages(rank=0, size=4)
    (6, 6)
    >>> ring_all_reduce.sent_bytes([8, 8, 8, 4], rank=0)
    40
    """

    WRITTEN: ClassVar[str] = "function"

    name: str
    collective: str
    function: Callable[..., None]
    title: str
    steps: Callable[[int], int]
    steps_formula: str
    """The formula of `steps` in print, for two ranks and more."""
    volume: Volume
    source: str
    order: orders.AddingOrder | None = None
    ordered: bool = False
    needs_power_of_two: bool = False
    users: bool = False
    """Whether it is a user's: its messages are then recorded, and its order is proved up to a + b = b + a."""
    chunks_sent: Callable[[int], float] | None = None
    """The mean chunks that a rank sends, by the number of ranks, if a user declares it."""
    rounds: Callable[[int], int] | None = None
    """The most rounds, by the number of ranks, if a user declares it."""
    per_host: int = 0
    """The number of neighbouring ranks on each host, if the algorithm depends on it; else 0."""

    @property
    def limit(self) -> str:
        """The supported numbers of ranks, in words."""
        hosts = f"a multiple of {self.per_host} ranks, or fewer" if self.per_host > 1 else "any number of ranks"
        return "a power of two of ranks" if self.needs_power_of_two else hosts

    def carry_out(self, comm: Communicator, *arguments: Any) -> None:
        """Run the collective, from whose bound method `algorithm_of` finds this row."""
        self.function(comm, *arguments)

    def serves(self, size: int) -> bool:
        fills_hosts = size < self.per_host or size % (self.per_host or 1) == 0
        return fills_hosts and (size.bit_count() == 1 or not self.needs_power_of_two)

    def messages(self, rank: int, size: int, root: int = 0) -> int:
        """The number of messages that `rank` sends."""
        return len(self.volume(rank, size, root))

    def sent_bytes(self, chunk_bytes: Sequence[int], rank: int, root: int = 0) -> int:
        """The bytes that `rank` sends, for chunks of these lengths, one for each rank."""
        messages = self.volume(rank, len(chunk_bytes), root)
        return sum(chunk_bytes[chunk] for message in messages for chunk in message)


STEPS: dict[str, Callable[[int], int]] = {
    "2 ⌊log₂ N⌋ + fold": lambda size: volume.folding(2, size),
    "2 (N − 1)": lambda size: 2 * (size - 1),
    "⌊log₂ N⌋ + fold": lambda size: volume.folding(1, size),
    "3N − 4": lambda size: max(0, 3 * size - 4),
    "⌈log₂ N⌉": volume.log2,
    "N − 1": lambda size: size - 1,
    "2N − 3": lambda size: max(0, 2 * size - 3),
}
"""The number of steps by its formula in print, for two ranks and more."""


def row(
    function: Callable[..., None], title: str, formula: str, sent: Volume, source: str, **more: Any
) -> Algorithm:
    """An algorithm named after its module, whose number of steps is that of its printed formula."""
    name, collective = function.__module__.rpartition(".")[2], function.__name__
    return Algorithm(name, collective, function, title, STEPS[formula], formula, sent, source, **more)


def on_hosts(per_host: int) -> "list[Algorithm]":
    """The two-level algorithms on hosts of `per_host` neighbouring ranks.

    >>> [row.sent_bytes([1] * 4, rank=0) for row in on_hosts(2)]
    [6, 3, 3, 8]
    """
    hosts, sent = two_level.on_hosts(per_host), volume.TwoLevels(per_host)
    words, once, twice = f"two levels, hosts of {per_host} ranks: ", "N − 1", "2 (N − 1)"
    adds: dict[str, Any] = {"per_host": per_host, "order": orders.two_level(per_host)}
    return [
        row(hosts.all_reduce, f"{words}reduce-scatter within, all-reduce between, all-gather within", twice,
            volume.one_after_the_other(sent.reduced, sent.gathered), MIKAMI, **adds),
        row(hosts.reduce_scatter, f"{words}within, then between", once, sent.reduced, MIKAMI, **adds),
        row(hosts.all_gather, f"{words}between, then within", once, sent.gathered, MIKAMI, per_host=per_host),
        replace(
            row(hosts.broadcast, f"{words}a tree between, then one within each", "⌈log₂ N⌉", sent.broadcast, MIKAMI,
                per_host=per_host),
            steps=lambda size: volume.log2(-(-size // per_host)) + volume.log2(min(per_host, size))),
    ]


def in_two_hops(per_host: int) -> Algorithm:
    """The two-hop reduce-scatter on hosts of `per_host` neighbouring ranks."""
    return Algorithm(
        "two_hop", "reduce_scatter", two_level.in_two_hops(per_host).reduce_scatter,
        f"two hops, hosts of {per_host} ranks: all-to-all within, then between",
        steps=lambda size: volume.two_hop(size, per_host), steps_formula="3 (H − 1) + rest",
        volume=volume.TwoLevels(per_host).reduced, order=orders.two_level(per_host, orders.rank_order), ordered=True,
        source=WANG, per_host=per_host,
    )


def levels(per_host: int) -> list[Algorithm]:
    """All algorithms with hosts, for hosts of `per_host` ranks."""
    return [*on_hosts(per_host), in_two_hops(per_host)]


_ROWS = [
    row(rabenseifner.all_reduce, "Rabenseifner: halve, near partner first, and double back", "2 ⌊log₂ N⌋ + fold",
        volume.folded_halves, RABENSEIFNER, order=orders.folded_tree, ordered=True),
    row(ring.all_reduce, "ring: reduce-scatter, then all-gather", "2 (N − 1)",
        volume.one_after_the_other(volume.all_but_own, volume.all_but_next), PATARASUK, order=orders.ring),
    row(doubling.all_reduce, "recursive doubling of whole vectors, near partner first", "⌊log₂ N⌋ + fold",
        volume.folded_whole, THAKUR, order=orders.folded_tree, ordered=True),
    row(direct.all_reduce, "direct: reduce-scatter in rank order, then all-gather", "3N − 4",
        volume.one_after_the_other(volume.all_but_own, volume.own_to_all), THAKUR, order=orders.rank_order,
        ordered=True),
    row(naive.all_reduce, "rank 0 reduces all vectors and sends the result to all", "2 (N − 1)",
        volume.one_after_the_other(volume.whole_to_root, volume.whole_from_root), MPI_STANDARD, order=orders.rank_order,
        ordered=True),
    row(halving.reduce_scatter, "recursive halving, far partner first", "⌈log₂ N⌉", volume.far_halves, THAKUR,
        order=orders.far_tree, needs_power_of_two=True),
    row(ring.reduce_scatter, "ring: once around, the owner adds last", "N − 1", volume.all_but_own, PATARASUK,
        order=orders.ring),
    row(rabenseifner.reduce_scatter, "halving by every second chunk, near partner first", "N − 1", volume.all_but_own,
        RABENSEIFNER, order=orders.near_tree, ordered=True, needs_power_of_two=True),
    row(direct.reduce_scatter, "direct: all pairs, in rank order", "2N − 3", volume.all_but_own, THAKUR,
        order=orders.rank_order, ordered=True),
    row(naive.reduce_scatter, "rank 0 reduces all vectors and sends each rank its chunk", "2 (N − 1)",
        volume.one_after_the_other(volume.whole_to_root, volume.chunks_from_root), MPI_STANDARD,
        order=orders.rank_order, ordered=True),
    row(doubling.all_gather, "recursive doubling, near partner first", "⌈log₂ N⌉", volume.doubled_runs, THAKUR,
        needs_power_of_two=True),
    row(bruck.all_gather, "Bruck: doubling around a circle", "⌈log₂ N⌉", volume.rotated_runs, BRUCK),
    row(ring.all_gather, "ring: once around", "N − 1", volume.all_but_next, PATARASUK),
    row(direct.all_gather, "direct: all pairs", "N − 1", volume.own_to_all, THAKUR),
    row(tree.broadcast, "binomial tree, from the root", "⌈log₂ N⌉", volume.whole_down_the_tree, JOHNSSON),
    row(naive.broadcast, "the root sends to everyone", "N − 1", volume.whole_from_root, MPI_STANDARD),
    row(tree.reduce, "binomial tree, to the root", "⌈log₂ N⌉", volume.whole_up_the_tree, JOHNSSON,
        order=orders.near_tree, ordered=True),
    row(naive.reduce, "the root receives from everyone, in rank order", "N − 1", volume.whole_to_root, MPI_STANDARD,
        order=orders.rank_order, ordered=True),
    row(tree.scatter, "binomial tree, from the root", "⌈log₂ N⌉", volume.halves_down_the_tree, JOHNSSON),
    row(naive.scatter, "the root sends each rank its chunk", "N − 1", volume.chunks_from_root, MPI_STANDARD),
    row(tree.gather, "binomial tree, to the root", "⌈log₂ N⌉", volume.halves_up_the_tree, JOHNSSON),
    row(naive.gather, "the root receives each rank's chunk", "N − 1", volume.own_to_root, MPI_STANDARD),
    row(direct.all_to_all, "direct: all pairs", "N − 1", volume.all_but_own, THAKUR),
    row(dissemination.barrier, "dissemination: hear of twice as many in every step", "⌈log₂ N⌉", volume.empty, HENSGEN),
]
PER_HOST = 2
"""The default number of ranks on a host."""

_BY_COLLECTIVE = {name: [row for row in [*_ROWS, *levels(PER_HOST)] if row.collective == name]
                  for name in dict.fromkeys(row.collective for row in _ROWS)}
ALGORITHMS: dict[str, Algorithm] = {
    f"{row.name}.{row.collective}": row for rows in _BY_COLLECTIVE.values() for row in rows}


def algorithm_of(function: Callable[..., None]) -> Algorithm:
    """The row of a collective's function; for two levels, with any number of ranks on a host.

    >>> algorithm_of(ring.all_gather).name, algorithm_of(two_level.on_hosts(4).all_gather).per_host
    ('ring', 4)
    """
    owner = getattr(function, "__self__", None)
    if isinstance(owner, Algorithm):
        return owner
    per_host = getattr(getattr(function, "__self__", None), "per_host", PER_HOST)
    known = [*ALGORITHMS.values(), *levels(per_host)]
    return next(row for row in known if row.function == function)


def find(collective: str, algorithm: str, size: int, *, commutative: bool = True) -> Algorithm:
    """The algorithm of that name, or for "auto" the first in the table that supports these ranks.

    The table lists the preferred algorithm of each collective first: few steps, no more bytes than needed. "auto"
    depends on the number of ranks alone, so the order of addition is the same for every vector. With
    `commutative=False` only algorithms that add in rank order are considered.

    Raises `CollectiveError` for a name that is not in the table and for ranks that it does not support.

    >>> find("all_gather", "auto", size=8).name, find("all_gather", "auto", size=6).name
    ('doubling', 'bruck')
    >>> find("reduce_scatter", "auto", size=6, commutative=False).name
    'direct'
    """
    family = {row.name: row for row in ALGORITHMS.values() if row.collective == collective}
    if not family:
        collectives = list(dict.fromkeys(row.collective for row in ALGORITHMS.values()))
        raise CollectiveError(f"no collective {collective!r}{nearest(collective, collectives)}")
    able = [
        name for name, row in family.items()
        if row.serves(size) and (commutative or row.ordered or row.order is None)
    ]
    if algorithm == "auto":
        return family[able[0]]
    if algorithm not in family:
        raise CollectiveError(
            f"no algorithm {algorithm!r} for {collective}{nearest(algorithm, [*family, 'auto'])}"
        )
    chosen = family[algorithm]
    if not chosen.serves(size):
        raise CollectiveError(
            f"{algorithm} serves {chosen.limit} in {collective}, not {size}: use {alternatives(able)}"
        )
    if algorithm not in able:
        raise CollectiveError(
            f"{algorithm} adds in a different order than that of the {size} ranks in {collective}, which "
            f"commutative=False rules out: use {alternatives(able)}"
        )
    return chosen


def nearest(name: str, names: Sequence[str]) -> str:
    """The end of an error message: the name that was meant, if one is close, and the allowed names."""
    return f"{did_you_mean(str(name), names) or ';'} there are {', '.join(names)}"


def alternatives(names: Sequence[str]) -> str:
    return " or ".join(repr(name) for name in names)
