"""One recorded run of a wrong collective: the expected terms of each place, and the values that each rank held."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from zerosim.collectives.kinds import CollectiveKind
from zerosim.core.sharding import bounds
from zerosim.core.terms import Blank, Symbol, Term, leaves, symbols
from zerosim.core.words import joined
from zerosim.observe.record import Message, Recording
from zerosim.proofs.subject import Subject
from zerosim.worlds.local import Sends

Place = tuple[int, int]
"""A rank and an element."""


@dataclass(frozen=True, eq=False)
class Case:
    """A run of `subject` with `count` elements, and its settings."""

    subject: Subject
    recording: Recording
    count: int
    root: int = 0
    sends: Sends = "buffered"

    @property
    def size(self) -> int:
        return self.recording.size

    @property
    def messages(self) -> Sequence[Message]:
        return self.recording.messages

    @cached_property
    def expected(self) -> dict[Place, tuple[Term, ...]]:
        return expected_terms(self.subject.kind, self.size, self.count, self.root)

    @cached_property
    def chunk_of(self) -> dict[int, int]:
        """The chunk of each element."""
        cut = bounds(self.count, self.size)
        return {element: chunk for chunk, edges in enumerate(cut) for element in range(*edges)}

    def unlike(self, same: Callable[[Symbol, int, tuple[Term, ...]], bool]) -> Iterator[Place]:
        """The places, in order, whose final value is wrong: `same(symbol, element, expected_terms)` does not hold."""
        right: set[tuple[int, int]] = set()  # by identity: most ranks hold the same symbols, of as many terms as ranks
        for (rank, element), expected in self.expected.items():
            symbol = self.last(rank)[element]
            if (id(symbol), id(expected)) in right or same(symbol, element, expected):
                right.add((id(symbol), id(expected)))
            else:
                yield rank, element

    @cached_property
    def wrong(self) -> list[Place]:
        """The places whose final value has not the expected terms, in order."""
        def has_terms(symbol: Symbol, _: int, expected: Sequence[Term]) -> bool:
            return len(held := [*leaves(symbol)]) == len(expected) and {*held} == {*expected}

        return [*self.unlike(has_terms)]

    def last(self, rank: int) -> Sequence[Symbol]:
        """The final vector of `rank`."""
        results = self.recording.results
        vector: Sequence[Symbol] = self.recording.vectors[rank][-1][1] if results is None else results[rank]
        return vector

    def words(self, elements: Iterable[int], whole: str = "the whole vector") -> str:
        """The chunks in which these elements are, in words."""
        chunks = sorted({self.chunk_of[element] for element in elements if element in self.chunk_of})
        if whole and len(chunks) == self.size > 1:
            return whole
        return f"chunk{'s' * (len(chunks) > 1)} {joined([*map(str, chunks)])}" if chunks else "nothing"


def terms(symbol: Any) -> list[Term | Blank]:
    """The contributions in a symbol, without other leaves."""
    return [leaf for leaf in leaves(symbol) if isinstance(leaf, Term | Blank)]


@lru_cache(maxsize=16)
def expected_terms(kind: CollectiveKind, size: int, count: int, root: int) -> dict[Place, tuple[Term, ...]]:
    """The terms expected in each place at the end, each once; other places do not matter.

    Places with the same terms share one tuple, so that work on it can be done once.
    """
    cut, vectors = bounds(count, size), [symbols(rank, count) for rank in range(size)]
    claimed: dict[Place, tuple[Term, ...]] = {}
    terms_from: dict[Any, list[tuple[Term, ...]]] = {}
    for rank in range(size):
        for chunk in kind.filled(rank, size, root):
            places = ((rank, element) for element in range(*cut[chunk]))
            sources = tuple(kind.sources(rank, chunk, size, root))
            if sources not in terms_from:
                terms_from[sources] = list(zip(*kind.contributions(vectors, rank, chunk, root), strict=True))
            claimed |= zip(places, terms_from[sources], strict=True)
    return claimed
