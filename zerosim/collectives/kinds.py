"""The table of kinds: the meaning of each collective, independent of its algorithm.

    part       the chunks of a rank's vector that are inputs or results; None if there are none
    sources    the contributions to a chunk of the result: pairs of a rank and a chunk of its vector; several are added

Proofs, laws, examples, scenarios and the command line read a rank's inputs and results here. Four properties are
computed from these columns and stated nowhere else: whether there is a root, whether contributions are added, whether
chunks change places, and whether all ranks end with the same. `test_kinds.py` replaces every entry by every other one:
each time a proof or a law fails.

Source: "MPI: A Message-Passing Interface Standard", chapter "Collective Communication", which defines each of these
under its own name.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from zerosim.core.sharding import split

ChunkPart = Callable[[int, int], slice | None]
"""`part(rank, root)`"""

Sources = Callable[[int, int, int, int], list[tuple[int, int]]]
"""`sources(rank, chunk, size, root)`: the contributions to `chunk` of `rank`'s result"""


def whole(rank: int, root: int) -> slice:
    """Every chunk."""
    return slice(None)


def own(rank: int, root: int) -> slice:
    """The chunk of the same number as the rank."""
    return slice(rank, rank + 1)


def whole_on_root(rank: int, root: int) -> slice | None:
    """Every chunk on the root, nothing elsewhere."""
    return slice(None) if rank == root else None


def nothing(rank: int, root: int) -> None:
    """No chunk."""


def of_everyone(rank: int, chunk: int, size: int, root: int) -> list[tuple[int, int]]:
    """This chunk of every rank."""
    return [(source, chunk) for source in range(size)]


def of_owner(rank: int, chunk: int, size: int, root: int) -> list[tuple[int, int]]:
    """This chunk of the rank with the chunk's number."""
    return [(chunk, chunk)]


def of_root(rank: int, chunk: int, size: int, root: int) -> list[tuple[int, int]]:
    """This chunk of the root."""
    return [(root, chunk)]


def transposed(rank: int, chunk: int, size: int, root: int) -> list[tuple[int, int]]:
    """The chunk with this rank's number, of the rank with the chunk's number."""
    return [(chunk, rank)]


@dataclass(frozen=True)
class CollectiveKind:
    """One kind of collective; `parameters` are those of a function that works in place, between `comm` and `root`.

    >>> COLLECTIVE_KINDS["reduce"].rooted, COLLECTIVE_KINDS["reduce"].reducing, COLLECTIVE_KINDS["reduce"].agreeing
    (True, True, False)
    """

    name: str
    mpi: str
    says: str
    parameters: tuple[str, ...]
    brings: ChunkPart
    leaves: ChunkPart
    sources: Sources

    @property
    def rooted(self) -> bool:
        """Whether the result depends on the root."""
        return any(part(0, 0) != part(0, 1) for part in (self.brings, self.leaves))

    @property
    def reducing(self) -> bool:
        """Whether contributions are added."""
        return len(self.sources(1, 0, 2, 0)) > 1

    @property
    def displacing(self) -> bool:
        """Whether a chunk ends in another place than its own: chunks are then equally long, and sent from a copy."""
        return any(source != chunk for chunk in range(2) for _, source in self.sources(0, chunk, 2, 0))

    @property
    def agreeing(self) -> bool:
        """Whether all ranks end with the same."""
        one, other = ([self.leaves(rank, 0), *(self.sources(rank, c, 2, 0) for c in range(2))] for rank in range(2))
        return one == other

    def brought(self, vector: Any, rank: int, size: int, root: int) -> Any:
        """The part of `vector` that is read when the collective begins, as a view, or None.

        >>> COLLECTIVE_KINDS["gather"].brought([1, 2], rank=1, size=2, root=0)
        [2]
        """
        return cut(vector, size, self.brings(rank, root))

    def left(self, vector: Any, rank: int, size: int, root: int) -> Any:
        """The part of `vector` that holds the result when the collective has ended, as a view, or None."""
        return cut(vector, size, self.leaves(rank, root))

    def filled(self, rank: int, size: int, root: int) -> range:
        """The numbers of the chunks that hold the result on `rank`.

        >>> [COLLECTIVE_KINDS[name].filled(rank=2, size=4, root=0) for name in ("scatter", "reduce")]
        [range(2, 3), range(0, 0)]
        """
        return range(size)[self.leaves(rank, root) or slice(0)]

    def contributions(self, vectors: Sequence[Any], rank: int, chunk: int, root: int) -> list[Any]:
        """The contributions that add up to `chunk` of `rank`: views.

        >>> COLLECTIVE_KINDS["all_to_all"].contributions([[1, 2], [3, 4]], rank=0, chunk=1, root=0)
        [[3]]
        """
        size = len(vectors)
        return [split(vectors[source], size)[its] for source, its in self.sources(rank, chunk, size, root)]

    def least_chunks(self, size: int, root: int = 0) -> int:
        """The fewest chunks that all ranks together can send.

        The contributions to a chunk meet at some rank, and the sum reaches its holders from there: every other
        contributor sends it at least once, and every other holder receives it once more. That makes
        contributors + holders − 1 messages, or one fewer if some rank is both.

        Source for all-reduce: Patarasuk and Yuan (2009), section 2.

        >>> [COLLECTIVE_KINDS[name].least_chunks(4) for name in ("all_reduce", "reduce_scatter", "broadcast")]
        [24, 12, 12]
        """
        holders: defaultdict[tuple[tuple[int, int], ...], set[int]] = defaultdict(set)
        for rank in range(size):
            for chunk in self.filled(rank, size, root):
                holders[tuple(self.sources(rank, chunk, size, root))].add(rank)
        return sum(len(contributors) + len(holding) - 1 - bool(contributors & holding)
                   for sources, holding in holders.items() for contributors in [{rank for rank, _ in sources}])


def cut(vector: Any, size: int, part: slice | None) -> Any:
    return None if part is None else split(vector, size)[part]


_ROWS = [
    CollectiveKind(
        "reduce_scatter", "MPI_Reduce_scatter", "every rank gets its own chunk of the sum of all vectors",
        ("chunks",), brings=whole, leaves=own, sources=of_everyone,
    ),
    CollectiveKind(
        "all_reduce", "MPI_Allreduce", "every rank gets the sum of all vectors",
        ("chunks",), brings=whole, leaves=whole, sources=of_everyone,
    ),
    CollectiveKind(
        "all_gather", "MPI_Allgather", "every rank gets every rank's chunk",
        ("chunks",), brings=own, leaves=whole, sources=of_owner,
    ),
    CollectiveKind(
        "all_to_all", "MPI_Alltoall", "rank r gets in chunk c what rank c has in chunk r",
        ("outgoing", "incoming"), brings=whole, leaves=whole, sources=transposed,
    ),
    CollectiveKind(
        "broadcast", "MPI_Bcast", "every rank gets the root's vector",
        ("vector",), brings=whole_on_root, leaves=whole, sources=of_root,
    ),
    CollectiveKind(
        "reduce", "MPI_Reduce", "the root gets the sum of all vectors",
        ("vector",), brings=whole, leaves=whole_on_root, sources=of_everyone,
    ),
    CollectiveKind(
        "scatter", "MPI_Scatter", "every rank gets its own chunk of the root's vector",
        ("chunks",), brings=whole_on_root, leaves=own, sources=of_root,
    ),
    CollectiveKind(
        "gather", "MPI_Gather", "the root gets every rank's chunk",
        ("chunks",), brings=own, leaves=whole_on_root, sources=of_owner,
    ),
    CollectiveKind(
        "barrier", "MPI_Barrier", "no rank continues before all have arrived",
        (), brings=nothing, leaves=nothing, sources=lambda rank, chunk, size, root: [],
    ),
]
COLLECTIVE_KINDS: dict[str, CollectiveKind] = {kind.name: kind for kind in _ROWS}
"""The kinds by name. A longer name precedes one that it contains, since a function's kind is the first name found in
its own."""

COLLECTIVES = tuple(name for name, kind in COLLECTIVE_KINDS.items() if kind.brings is not nothing)
"""The kinds that send data."""
