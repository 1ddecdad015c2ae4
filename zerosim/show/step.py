"""A recorded step of a stage, event by event: each rank's computation or communication, and its memory after it.

    event    an activity of a step's thread on every rank: a computation, or a collective with its messages
    held     the bytes of each kind that a rank has when an event ends

Times of a small step say little. The order of events is the same on all ranks, so event k is the k-th activity of
each rank, and the drawing needs no clock. Memory is the ledger's when an event ends.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.text import Text

from zerosim.core.errors import UsageError
from zerosim.core.words import plural
from zerosim.observe.trace import COLLECTIVES, COMPUTATION, OUT, RankStep, Span, Trace
from zerosim.show.grid import show_words
from zerosim.show.legend import KIND_WORDS, STATE_BARS, stacked
from zerosim.show.timeline import LETTERS

OTHERS = ("activations", "buffers")
MOST_RANKS = 4
"""The most ranks that are columns in a terminal."""
ROOM, FIGURE = 9, 7
"""The columns of a bar, and of the number beside it."""


@dataclass(frozen=True)
class RankEvent:
    """One rank's part of an event: the bytes that it sent to each rank, and its memory afterwards."""

    sent: dict[int, int]
    held: dict[str, int]

    @property
    def total(self) -> int:
        return sum(self.held.values())


@dataclass(frozen=True)
class StepEvent:
    """The parts of all ranks in an event; `unit` is empty if it concerns none."""

    what: str
    unit: str
    ranks: list[RankEvent]

    @property
    def communicates(self) -> bool:
        return any(did.sent for did in self.ranks)

    @property
    def letter(self) -> str:
        """The letter of the event, as in a timeline."""
        return LETTERS[self.what].letter if self.what in LETTERS else "M" if self.communicates else ""

    @property
    def words(self) -> str:
        """A line about the event, without the bytes that it sends."""
        known = LETTERS.get(self.what)
        return f"{known.words if known else self.what} {self.unit}".strip()


@dataclass(frozen=True)
class RecordedStep:
    """One step: its title, its description, its events, and the fault of the training or None."""

    title: str
    about: str
    events: list[StepEvent]
    fault: str | None

    @property
    def size(self) -> int:
        return len(self.events[0].ranks)

    @property
    def most(self) -> int:
        """The largest memory of any rank after any event."""
        return max(did.total for event in self.events for did in event.ranks)

    @property
    def verdict(self) -> str:
        return f"FAILED: {self.fault}" if self.fault else "PASSED: every bit equal to one process"

    def document(self) -> dict[str, Any]:
        return {
            "schema": "zerosim.step/1", "title": self.title, "about": self.about, "ranks": self.size,
            "verdict": self.verdict,
            "moments": [
                {"what": event.what, "unit": event.unit, "words": event.words, "ranks": [
                    {"sent_bytes": {str(peer): sent for peer, sent in did.sent.items()}, "held_bytes": did.held}
                    for did in event.ranks]}
                for event in self.events],
        }


def events_of(trace: Trace) -> list[StepEvent]:
    """The events of a traced step, and a last one after the end of all.

    Raises `UsageError` if ranks did different things.
    """
    steps = sorted(trace.steps, key=lambda step: step.rank)
    columns = [list(acts(step)) for step in steps]
    names = [[(what, unit) for what, unit, _, _ in column] for column in columns]
    if any(each != names[0] for each in names):
        raise UsageError("ranks did different things in this step, so they have no common drawing; zerosim run "
                         "--timeline draws each rank")
    found = [
        StepEvent(what, unit, [RankEvent(column[number][2], held_at(step, column[number][3]))
                            for step, column in zip(steps, columns, strict=True)])
        for number, (what, unit) in enumerate(names[0])
    ]
    return [*found, StepEvent("between steps", "", [RankEvent({}, held_at(step, step.end_ns)) for step in steps])]


def acts(step: RankStep) -> Iterator[tuple[str, str, dict[int, int], int]]:
    """The activities of the thread of a step: name, unit, bytes sent to each rank, and time of the end."""
    thread = [span for span in step.spans if span.channel == 1]
    out = sorted((span for span in thread if span.lane == OUT), key=lambda span: span.begin_ns)
    main = sorted((span for span in thread if span.lane in (COMPUTATION, COLLECTIVES)), key=lambda span: span.begin_ns)
    loose: list[Span] = []
    for span in main:
        loose = [each for each in out if each.end_ns <= span.begin_ns]
        out = [each for each in out if each.end_ns > span.begin_ns]
        if loose:
            yield "messages", "", sent(loose), loose[-1].end_ns
        within = [each for each in out if each.begin_ns <= span.end_ns] if span.lane == COLLECTIVES else []
        out = out[len(within) :]
        yield span.what, span.unit, sent(within), span.end_ns


def sent(messages: Sequence[Span]) -> dict[int, int]:
    found: Counter[int] = Counter()
    for message in messages:
        assert message.peer is not None
        found[message.peer] += message.bytes
    return dict(found)


def held_at(step: RankStep, at_ns: int) -> dict[str, int]:
    number = bisect_right([at for at, _ in step.memory], at_ns)
    return {kind: held for kind, held in step.memory[max(number - 1, 0)][1].items() if held}


def show_step(console: Console, found: RecordedStep, only: int | None = None, most: int = MOST_RANKS) -> None:
    """Show a line for each event, a column for each of `most` ranks; or `only` one event, counted from 1."""
    console.print(Text.assemble((found.title, "bold"), f": {found.about}"), soft_wrap=True)
    legend = Text("  ").join(
        Text.assemble((kind.shade, kind.colour), f" {KIND_WORDS[kind.name]}") for kind in STATE_BARS)
    show_words(console, legend.append("  · others: held when an event ends, kB  ▶ kB that a rank sends"))
    width = max(len(line_of(number, each)) for number, each in enumerate(found.events, 1)) + 2
    ranks = range(min(found.size, most, max((console.width - width) // (ROOM + FIGURE), 1)))
    names = "".join(f"{f'rank {rank}':<{ROOM + FIGURE}}" for rank in ranks)
    console.print(Text(" " * width + names.rstrip(), style="bold"), soft_wrap=True)
    for number, event in enumerate(found.events, 1):
        if only is None or number == only:
            line = Text(f"{line_of(number, event):<{width}}", style="bold" if event.communicates else "")
            for rank in ranks:
                line.append_text(cell(event.ranks[rank], found.most))
            line.rstrip()
            console.print(line, soft_wrap=True)
    if found.size > len(ranks):
        words = f"left out: {plural(found.size - len(ranks), 'rank')}; --html FILE draws them all"
        console.print(words, style="yellow")
    colour = "bold red" if found.fault else "bold green"
    console.print(Text(found.verdict, style=colour), soft_wrap=not console.is_terminal)


def line_of(number: int, event: StepEvent) -> str:
    """A line about an event, with the most bytes that a rank sends in it."""
    most = max(sum(did.sent.values()) for did in event.ranks)
    sends = f" ▶{most / 1e3:.1f}" if most else ""
    return f"{number:>3} {event.words}{sends}"


def cell(did: RankEvent, most: int) -> Text:
    """The cell of a rank's memory: a bar, and a number in kB."""
    bar = stacked([did.held.get(kind.name, 0) for kind in STATE_BARS], most, ROOM)
    others = round(sum(did.held.get(kind, 0) for kind in OTHERS) * ROOM / most)
    bar.append("·" * min(others, ROOM - len(bar)), style="dim")
    bar.pad_right(ROOM + 1 - len(bar))
    return bar.append(f"{did.total / 1e3:<{FIGURE - 1}.1f}")
