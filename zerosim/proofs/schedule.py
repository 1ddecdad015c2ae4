"""A recorded run as a schedule: the messages of each round, and every rank's vector after it.

    state      the vectors of all ranks after a round; state 0 is the start
    place      the position of a chunk in a rank's vector; chunks are recorded with one element each
    outside    in memory of the algorithm's own, not in the vector

Drawings and documents of a schedule are derived from the recording: nothing here knows an algorithm.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

from zerosim.collectives.kinds import COLLECTIVES
from zerosim.core.terms import Blank, Sum, Term, leaves
from zerosim.core.words import plural
from zerosim.observe.record import Message, Recording
from zerosim.proofs.case import Place, expected_terms
from zerosim.proofs.cause import diagnosis
from zerosim.proofs.proof import Proof, examine
from zerosim.proofs.subject import Subject

WIDEST = 11
"""The columns of the longest sum that is written out in a cell."""


@dataclass(frozen=True)
class Cell:
    """The content of one place of a rank, and the round since which it is there.

    `outside` is as above; `complete` says that it is the collective's result for this place.
    """

    holds: Any
    place: int
    since: int
    outside: bool = False
    complete: bool = False

    @cached_property
    def text(self) -> str:
        """The ranks whose contributions it holds, in order of addition, and their chunk if it is another.

        >>> Cell((Term(2) + Term(3)) + Term(0), place=0, since=2, complete=True).text, Cell(Term(2, 1), 0, 0).text
        ('2+3+0✓', '2[1]')
        """
        terms = list(leaves(self.holds))
        if all(isinstance(leaf, Term) and leaf.element == self.place for leaf in terms):
            words = abbreviated([leaf.rank for leaf in terms], "+")
        else:
            words = "+".join(expression(leaf, self.place).removeprefix("g") for leaf in terms)
        words = words if len(words) <= WIDEST else f"{len(terms)} terms"
        return (f"({words})" if self.outside else words) + "✓" * self.complete


Vectors = Sequence[tuple[Cell, ...]]
"""The cells of every rank."""


@dataclass(frozen=True)
class Schedule:
    """A run of `subject` on `size` ranks, and what `proof` says about it.

    There is a state for the start, for every round, and one more if ranks copied data in their own memory after the
    last round.
    """

    subject: Subject
    size: int
    root: int
    chunks: int
    rounds: int
    messages: list[Message]
    states: list[Vectors]
    proof: Proof

    @property
    def title(self) -> str:
        root = f", root {self.root}" if self.subject.kind.rooted else ""
        return f"{self.subject.name} on {plural(self.size, 'rank')}{root}"

    @property
    def about(self) -> str:
        """The numbers of rounds and messages, and the title of the algorithm or the collective of a function."""
        cost = f"{plural(self.rounds, 'round')}, {plural(len(self.messages), 'message')}"
        return f"{cost}; {self.subject.algorithm.title if self.subject.algorithm else self.subject.collective}"

    @property
    def verdict(self) -> str:
        if faults := self.proof.faults:
            more = f"; and {plural(len(faults) - 1, 'more rank')}" if len(faults) > 1 else ""
            return f"FAILED: {faults[0].what}{more}"
        if not self.chunks:
            return "PASSED: every rank returned"
        return f"PASSED: every rank holds what {self.subject.collective} promises"

    @cached_property
    def cause(self) -> str | None:
        """Why it is wrong, if that is known."""
        known = diagnosis(self.proof)
        return None if known is None else known.cause

    def heading(self, state: int) -> str:
        return f"round {state}" if 0 < state <= self.rounds else "end" if state else "start"

    def place_name(self, *places: int) -> str:
        """The name of some places; a vector that is never cut is one chunk."""
        if self.chunks == 1 < self.size and places:
            return "vector"
        return f"chunk{'s' * (len(places) > 1)} {abbreviated(places, ',')}" if places else "no chunk"

    def document(self) -> dict[str, Any]:
        """The schedule as JSON: all messages, and the contents of every place after each change."""
        return {
            "schema": "zerosim.schedule/1",
            "name": self.subject.name,
            "collective": self.subject.collective,
            "size": self.size,
            "root": self.root if self.subject.kind.rooted else None,
            "chunks": self.chunks,
            "rounds": self.rounds,
            "messages": [
                {"round": sent.round, "source": sent.source, "to": sent.to, "chunks": chunks_of(sent.carried),
                 "reduced": sent.reduced} for sent in self.messages],
            "holdings": [
                {"round": cell.since, "rank": rank, "chunk": cell.place, "holds": expression(cell.holds, cell.place),
                 "outside": cell.outside, "complete": cell.complete}
                for since, state in enumerate(self.states) for rank, cells in enumerate(state) for cell in cells
                if cell.since == since],
            "faults": [fault.what for fault in self.proof.faults],
            "cause": self.cause,
        }


def scheduled(subject: Subject, size: int, root: int = 0) -> Schedule:
    """The schedule of a recorded run of `subject` on `size` ranks, up to its end or its failure.

    A chunk has one element; an algorithm of the table that never cuts its vector has a single chunk. A user's function
    also runs with sends that wait for their receivers.

    >>> from zerosim.proofs.subject import named_subject
    >>> schedule = scheduled(named_subject("ring.all_reduce"), 3)
    >>> schedule.about, chunks_of(schedule.messages[0].carried), [cell.text for cell in schedule.states[-1][0]]
    ('4 rounds, 12 messages; ring: reduce-scatter, then all-gather', [1], ['1+2+0✓', '2+0+1✓', '0+1+2✓'])
    """
    chunks = size if subject.collective in COLLECTIVES else 0
    proof = Proof(subject, size)
    examine(proof, chunks, root, "buffered")
    if subject.algorithm and chunks and proof.case and all(len(m.carried) == chunks for m in proof.case.messages):
        proof, chunks = Proof(subject, size), 1
        examine(proof, chunks, root, "buffered")
    assert proof.case is not None
    recording = proof.case.recording
    if subject.algorithm is None and not proof.faults:
        examine(proof, chunks, root, "rendezvous")
    promised = expected_terms(subject.kind, size, chunks, root)
    states: list[Vectors] = list(zip(*(history(recording, rank, promised) for rank in range(size)), strict=True))
    if states[-1] == states[-2]:
        states.pop()
    messages = sorted(recording.messages, key=lambda sent: (sent.round, sent.to))
    return Schedule(subject, size, root, chunks, recording.rounds, messages, states, proof)


def history(
    recording: Recording, rank: int, promised: Mapping[Place, Sequence[Term]]
) -> Iterator[tuple[Cell, ...]]:
    """The cells of `rank` at the start, after every round, and at the end.

    Data received outside of the vector are shown at their place until data arrive in that place of the vector.
    """
    arrived = {message.round: message for message in recording.messages if message.to == rank}
    vector, outside, cells = recording.holds(rank, after=0), dict[int, Any](), dict[int, Cell]()
    for state in range(recording.rounds + 2):
        before, vector = vector, recording.holds(rank, after=state)
        outside = {place: symbol for place, symbol in outside.items() if vector[place] is before[place]}
        if state in arrived and not arrived[state].into:
            landed = arrived[state].landed
            outside |= {place: symbol for symbol in landed for place in chunks_of([symbol]) if place < len(vector)}
        if state > recording.rounds and recording.results is not None:
            vector, outside = recording.results[rank], {}
        for place, symbol in enumerate(vector):
            holds, out, old = outside.get(place, symbol), place in outside, cells.get(place)
            if old is None or old.holds is not holds or old.outside != out:
                due = promised.get((rank, place))
                complete = due is not None and not out and Counter(leaves(holds)) == Counter(due)
                cells[place] = Cell(holds, place, state, out, complete)
        yield tuple(cells.values())


def chunks_of(symbols: Iterable[Any]) -> list[int]:
    """The chunks that contributions belong to, in the order of their first appearance.

    >>> chunks_of([Term(0, 4) + Term(1, 4), Term(0, 0)])
    [4, 0]
    """
    terms = (leaf for symbol in symbols for leaf in leaves(symbol))
    return list(dict.fromkeys(leaf.element for leaf in terms if isinstance(leaf, Term | Blank)))


def abbreviated(numbers: Sequence[int], joint: str, most: int = 4) -> str:
    """Numbers as text; if there are more than `most`, three or more in a row by their first and last.

    >>> abbreviated([1, 2, 3, 0], "+"), abbreviated([1, 2, 3, 4, 0], "+")
    ('1+2+3+0', '1…4+0')
    """
    rows = [[number for _, number in row]
            for _, row in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])]
    return joint.join(f"{row[0]}…{row[-1]}" if len(row) > 2 and len(numbers) > most else joint.join(map(str, row))
                      for row in rows)


def expression(symbol: Any, place: int) -> str:
    """A sum with its parentheses; `g2` is rank 2's contribution to this place, `g2[1]` that to chunk 1.

    >>> expression((Term(1) + Term(2, 1)) + Term(0), place=0)
    '((g1 + g2[1]) + g0)'
    """
    match symbol:
        case Sum(left, right):
            return f"({expression(left, place)} + {expression(right, place)})"
        case Term(rank, element):
            return f"g{rank}" if element == place else f"g{rank}[{element}]"
        case Blank():
            return "·"
    return "?"
