"""One recorded run of a wrong collective: the expected terms of each place, and the values that each rank held."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from zerosim.collectives.kinds import CollectiveKind
from zerosim.core.sharding import bounds
from zerosim.core.terms import Blank, Sum, Symbol, Term, leaves, symbols
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

    def places(self, *more: Sequence[Symbol]) -> list[Place]:
        """Places with expected terms that stand for all: in the final vectors, and in `more`, every sum of a chunk is
        like that of one of them."""
        told = {element for sums in (*map(self.last, range(self.size)), *more)
                for start, stop in bounds(self.count, self.size) for element in firsts(sums, start, stop)}
        return [place for place in self.expected if place[1] in told]

    def unlike(self, same: Callable[[Symbol, int, Sequence[Term]], bool], *more: Sequence[Symbol]) -> Iterator[Place]:
        """Those of `places` whose final value is not the `same`, by its element and expected terms, in order."""
        right: set[tuple[int, int]] = set()  # by identity: most ranks hold the same symbols, of as many terms as ranks
        for rank, element in self.places(*more):
            symbol, expected = self.last(rank)[element], self.expected[rank, element]
            if (id(symbol), id(expected)) in right or same(symbol, element, expected):
                right.add((id(symbol), id(expected)))
            else:
                yield rank, element

    @cached_property
    def wrong(self) -> list[Place]:
        """Those of `places` whose final value has not the expected terms, in order."""
        return [*self.unlike(lambda symbol, _, expected: Counter(leaves(symbol)) == Counter(expected))]

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


def firsts(sums: Sequence[Symbol], start: int, stop: int) -> Iterator[int]:
    """The first element of each stretch from `start` to `stop` whose sums are alike.

    >>> list(firsts([*(symbols(0, 4) + symbols(1, 4)), *(symbols(1, 8) + symbols(0, 8))[4:]], 0, 8))
    [0, 4]
    """
    if stop - start > 1 and not alike(sums[start:stop]):
        middle = (start + stop) // 2
        yield from firsts(sums, start, middle)
        yield from firsts(sums, middle, stop)
    elif stop > start:
        yield start


def alike(sums: Sequence[Any]) -> bool:
    """Whether consecutive elements have contributions of the same ranks, added in the same order."""
    pending = [sums]
    while pending:
        sums = pending.pop()
        (kind, *others), first = {*map(type, sums)}, sums[0]
        if others:
            return False
        if kind is Sum:
            pending += [[symbol.left for symbol in sums], [symbol.right for symbol in sums]]
        elif kind not in (Term, Blank) or {symbol.rank for symbol in sums} != {first.rank} or [
                symbol.element for symbol in sums] != [*range(first.element, first.element + len(sums))]:
            return False
    return True


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
