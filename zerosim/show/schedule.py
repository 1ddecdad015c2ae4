"""A recorded run as a schedule: the messages of each round, and every rank's vector after it.

    state      the vectors of all ranks after a round; state 0 is the start
    place      the position of a chunk in a rank's vector; chunks are recorded with one element each
    outside    in memory of the algorithm's own, not in the vector

Drawings and documents of a schedule are derived from the recording: nothing here knows an algorithm.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

from zerosim.collectives.kinds import COLLECTIVES
from zerosim.core.errors import Deadlock
from zerosim.core.terms import Blank, Sum, Term, leaves
from zerosim.core.words import plural
from zerosim.observe.record import Message, Recording
from zerosim.proofs.case import Case, Place, expected_terms
from zerosim.proofs.cause import Diagnosis, of_case
from zerosim.proofs.proof import WAITING, Proof, check_order, failure_line, run
from zerosim.proofs.proof import faults as proof_faults
from zerosim.proofs.subject import Subject

WIDEST = 11
"""The columns of the longest sum that is written out in a cell."""


@dataclass(frozen=True)
class Arrow:
    """One message: its chunks, and their places at the destination; `empty` if it has no elements."""

    round: int
    source: int
    to: int
    chunks: tuple[int, ...]
    lands: tuple[int, ...]
    reduced: bool
    empty: bool = False


@dataclass(frozen=True)
class Cell:
    """The content of one place of a rank, and the round since which it is there.

    `complete`: it is the collective's result for this place.
    """

    holds: Any
    place: int
    since: int
    outside: bool = False
    complete: bool = False

    @cached_property
    def text(self) -> str:
        """The ranks whose contributions it holds, in their order of addition.

        >>> Cell((Term(2) + Term(3)) + Term(0), place=0, since=2, complete=True).text
        '2+3+0✓'
        """
        held = abbreviated_sum(self.holds, self.place)
        return (f"({held})" if self.outside else held) + "✓" * self.complete


State = Sequence[tuple[Cell, ...]]
"""The cells of every rank."""


@dataclass(frozen=True)
class Schedule:
    """A run of `subject` on `size` ranks; `faults` has a line for each fault.

    There is a state for the start, for every round, and one more if ranks copied data in their own memory after the
    last round.
    """

    subject: Subject
    size: int
    root: int
    chunks: int
    rounds: int
    arrows: list[Arrow]
    states: list[State]
    faults: list[str]
    diagnosis: Diagnosis | None = None
    """The cause of a faulty run, and the command that shows it."""

    @property
    def title(self) -> str:
        root = f", root {self.root}" if self.subject.kind.rooted else ""
        return f"{self.subject.name} on {plural(self.size, 'rank')}{root}"

    @property
    def about(self) -> str:
        """The title of the algorithm, or the collective that a function implements."""
        return self.subject.algorithm.title if self.subject.algorithm else self.subject.collective

    @property
    def cost(self) -> str:
        return f"{plural(self.rounds, 'round')}, {plural(len(self.arrows), 'message')}"

    @property
    def verdict(self) -> str:
        if self.faults:
            more = len(self.faults) - 1
            return f"FAILED: {self.faults[0]}" + (f"; and {more} more rank{'s' * (more > 1)}" if more else "")
        if not self.chunks:
            return "PASSED: every rank returned"
        return f"PASSED: every rank holds what {self.subject.collective} promises"

    def arrows_in(self, round_: int) -> list[Arrow]:
        return [arrow for arrow in self.arrows if arrow.round == round_]

    def news(self) -> Iterator[tuple[int, Cell]]:
        """Every cell once, in the state in which it is new, with its rank."""
        for since, state in enumerate(self.states):
            for rank, cells in enumerate(state):
                yield from ((rank, cell) for cell in cells if cell.since == since)

    def heading(self, state: int) -> str:
        if state == 0:
            return "start"
        return f"round {state}" if state <= self.rounds else "end"

    def place_name(self, place: int) -> str:
        return "vector" if self.whole else f"chunk {place}"

    def cargo(self, arrow: Arrow) -> str:
        if not self.chunks or arrow.empty:
            return "empty"
        if self.whole and arrow.chunks:
            return "vector"
        if len(arrow.chunks) == self.chunks > 1:
            return "all chunks"
        if not arrow.chunks:
            return "other data"
        return f"chunk{'s' * (len(arrow.chunks) > 1)} {abbreviated(arrow.chunks, ',')}"

    @property
    def whole(self) -> bool:
        """Whether the vector is never cut."""
        return self.chunks == 1 < self.size


def scheduled(subject: Subject, size: int, root: int = 0) -> Schedule:
    """The schedule of a recorded run of `subject` on `size` ranks, up to its end or its failure.

    >>> from zerosim.proofs.subject import named_subject
    >>> schedule = scheduled(named_subject("ring.all_reduce"), 3)
    >>> schedule.cost, schedule.arrows[0].chunks, [cell.text for cell in schedule.states[-1][0]]
    ('4 rounds, 12 messages', (1,), ['1+2+0✓', '2+0+1✓', '0+1+2✓'])
    """
    recording = recorded(subject, size, root)
    chunks = len(recording.holds(0, after=0))
    case = Case(subject, recording, chunks, root)
    faults = complaints(case)
    if not faults and (waiting := when_sends_wait(case)) is not None:
        case, faults = waiting, complaints(waiting)
    promised = expected_terms(subject.kind, size, chunks, root)
    arrivals = list(witnessed_arrivals(recording))
    histories = [history(recording, rank, arrivals, promised) for rank in range(size)]
    states: list[State] = list(zip(*histories, strict=True))
    if states[-1] == states[-2]:
        states.pop()
    return Schedule(
        subject, size, root, chunks, recording.rounds,
        sorted((arrow(message, vector) for message, vector in arrivals), key=lambda each: (each.round, each.to)),
        states, faults, of_case(case) if faults else None,
    )


def recorded(subject: Subject, size: int, root: int) -> Recording:
    """A run with one element in each chunk; with a single element if an algorithm of the table never cuts its vector.
    """
    if subject.collective not in COLLECTIVES:
        return run(subject, size, 0)
    recording = run(subject, size, size, root)
    if subject.algorithm is not None and all(len(message.carried) == size for message in recording.messages):
        return run(subject, size, 1, root)
    return recording


def when_sends_wait(case: Case) -> Case | None:
    """A user's function run so that each send waits for its receiver, if that ends in a deadlock."""
    if case.subject.algorithm is not None:
        return None
    recording = run(case.subject, case.size, case.count, case.root, "rendezvous")
    return replace(case, recording=recording, sends="rendezvous") if isinstance(recording.failure, Deadlock) else None


def complaints(case: Case) -> list[str]:
    """The faults of a run: the reason of an early end, wrong places, or a wrong order of addition."""
    subject, recording = case.subject, case.recording
    if recording.results is None:
        waiting = f"with {WAITING}: " if case.sends == "rendezvous" else ""
        return [waiting + failure_line(subject, recording)]
    proof = Proof(subject, recording.size)
    proof.faults += proof_faults(subject, recording, case.count, case.root)
    if subject.kind.reducing and proof.holds:
        check_order(proof, recording.results, case.count, case.root)
    return [fault.what for fault in proof.faults]


def witnessed_arrivals(recording: Recording) -> Iterator[tuple[Message, tuple[Any, ...]]]:
    """Every message with the vector of its receiver right after it."""
    vectors = [iter(history[1:]) for history in recording.vectors]
    for message in recording.messages:
        yield message, next(vectors[message.to])[1]


def arrow(message: Message, vector: Sequence[Any]) -> Arrow:
    chunks = chunks_of(message.carried)
    landed = {id(symbol) for symbol in message.landed}
    lands = tuple(place for place, symbol in enumerate(vector) if id(symbol) in landed)
    return Arrow(
        message.round, message.source, message.to, chunks, lands or chunks, message.reduced, not message.carried)


def history(
    recording: Recording,
    rank: int,
    arrivals: Sequence[tuple[Message, tuple[Any, ...]]],
    promised: Mapping[Place, Sequence[Term]],
) -> list[tuple[Cell, ...]]:
    """The cells of `rank` at the start, after every round, and at the end.

    Data received outside of the vector are shown at their place until data arrive in that place of the vector.
    """
    vector, outside = recording.holds(rank, after=0), dict[int, Any]()
    cells: dict[int, Cell] = {}
    states = []
    for state in range(recording.rounds + 2):
        for message, arrived in arrivals:
            if message.to == rank and message.round == state:
                before, vector = vector, arrived
                outside = {place: symbol for place, symbol in outside.items() if vector[place] is before[place]}
                outside |= received_outside(message, vector)
        if state > recording.rounds and recording.results is not None:
            vector, outside = recording.results[rank], {}
        for place, symbol in enumerate(vector):
            holds, beside, old = outside.get(place, symbol), place in outside, cells.get(place)
            if old is None or old.holds is not holds or old.outside != beside:
                due = promised.get((rank, place))
                complete = due is not None and not beside and Counter(leaves(holds)) == Counter(due)
                cells[place] = Cell(holds, place, state, beside, complete)
        states.append(tuple(cells.values()))
    return states


def received_outside(message: Message, vector: Sequence[Any]) -> dict[int, Any]:
    """The symbols, by chunk, that a message left outside of the vector."""
    inside = {id(symbol) for symbol in vector}
    return {
        chunk: symbol
        for symbol in message.landed if id(symbol) not in inside
        for chunk in chunks_of([symbol]) if chunk < len(vector)
    }


def chunks_of(symbols: Iterable[Any]) -> tuple[int, ...]:
    """The chunks that contributions belong to, in the order of their first appearance.

    >>> chunks_of([Term(0, 4) + Term(1, 4), Term(0, 0)])
    (4, 0)
    """
    found = (leaf for symbol in symbols for leaf in leaves(symbol))
    return tuple(dict.fromkeys(leaf.element for leaf in found if isinstance(leaf, Term | Blank)))


def abbreviated_sum(symbol: Any, place: int) -> str:
    """The ranks in a sum, left to right; a contribution to another chunk names that chunk.

    >>> abbreviated_sum((Term(3, 1) + Term(0, 1)) + Term(1, 1), place=1), abbreviated_sum(Term(2, 1), place=0)
    ('3+0+1', '2[1]')
    """
    found: list[Any] = list(leaves(symbol))
    if all(isinstance(leaf, Term) and leaf.element == place for leaf in found):
        text = abbreviated([leaf.rank for leaf in found], "+")
    else:
        text = "+".join(one_term(leaf, place) for leaf in found)
    return text if len(text) <= WIDEST else f"{len(found)} terms"


def one_term(leaf: Any, place: int) -> str:
    match leaf:
        case Term(rank, element):
            return f"{rank}" if element == place else f"{rank}[{element}]"
        case Blank():
            return "·"
    return "?"


def abbreviated(numbers: Sequence[int], joint: str) -> str:
    """Numbers as text; if there are more than four, three or more in a row by their first and last.

    >>> abbreviated([1, 2, 3, 0], "+"), abbreviated([1, 2, 3, 4, 0], "+")
    ('1+2+3+0', '1…4+0')
    """
    if len(numbers) <= 4:
        return joint.join(map(str, numbers))
    jumps = [i for i, (here, following) in enumerate(pairwise(numbers), 1) if following != here + 1]
    parts: list[str] = []
    for first, last in pairwise([0, *jumps, len(numbers)]):
        row = numbers[first:last]
        parts += [f"{row[0]}…{row[-1]}"] if len(row) > 2 else map(str, row)
    return joint.join(parts)


def expression(symbol: Any, place: int) -> str:
    """A sum with its parentheses; `g2` is rank 2's contribution to this place, `g2[1]` that to chunk 1.

    >>> expression((Term(1) + Term(2)) + Term(0), place=0)
    '((g1 + g2) + g0)'
    """
    if isinstance(symbol, Sum):
        return f"({expression(symbol.left, place)} + {expression(symbol.right, place)})"
    return f"g{one_term(symbol, place)}" if isinstance(symbol, Term) else one_term(symbol, place)


def schedule_document(schedule: Schedule) -> dict[str, Any]:
    """The schedule as JSON: all messages, and the contents of every place after each change."""
    return {
        "schema": "zerosim.schedule/1",
        "name": schedule.subject.name,
        "collective": schedule.subject.collective,
        "size": schedule.size,
        "root": schedule.root if schedule.subject.kind.rooted else None,
        "chunks": schedule.chunks,
        "rounds": schedule.rounds,
        "messages": [
            {
                "round": arrow.round, "source": arrow.source, "to": arrow.to,
                "chunks": list(arrow.chunks), "reduced": arrow.reduced,
            }
            for arrow in schedule.arrows
        ],
        "holdings": [
            {
                "round": cell.since, "rank": rank, "chunk": cell.place,
                "holds": expression(cell.holds, cell.place), "outside": cell.outside, "complete": cell.complete,
            }
            for rank, cell in schedule.news()
        ],
        "faults": schedule.faults,
        "cause": schedule.diagnosis and schedule.diagnosis.cause,
    }
