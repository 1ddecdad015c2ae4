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

import msgspec
from rich.console import Console
from rich.text import Text

from zerosim.core.errors import UsageError
from zerosim.core.words import plural
from zerosim.observe.memory import MEMORY_KINDS
from zerosim.observe.trace import COLLECTIVES, COMPUTATION, OUT, RankStep, Span, Trace
from zerosim.show.columns import KIND_WORDS
from zerosim.show.grid import SHADES, Column, bar, show_grid, show_words
from zerosim.show.page import Head, Section, html
from zerosim.show.shown import Page, Shown, printed

MOST_RANKS = 4
"""The most ranks that are columns in a terminal."""
ROOM, FIGURE = 8, 5
"""The columns of a bar, and of the number beside it."""
STATES = MEMORY_KINDS[:3]


@dataclass(frozen=True)
class RankEvent:
    """One rank's part of an event: the bytes that it sent to each rank, and its memory afterwards, by kind."""

    sent_bytes: dict[int, int]
    held_bytes: dict[str, int]

    @property
    def total(self) -> int:
        return sum(self.held_bytes.values())


@dataclass(frozen=True)
class StepEvent:
    """The parts of all ranks in an event; `unit` is empty if it concerns none, `words` are a line about it."""

    what: str
    unit: str
    words: str
    ranks: list[RankEvent]


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
            "moments": msgspec.to_builtins(self.events, str_keys=True),
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
                         "--report FILE.html draws each rank")
    found = [
        StepEvent(what, unit, f"{what.replace('_', '-')} {unit}".strip(), [
            RankEvent(column[number][2], held_at(step, column[number][3]))
            for step, column in zip(steps, columns, strict=True)])
        for number, (what, unit) in enumerate(names[0])
    ]
    at_rest = [RankEvent({}, held_at(step, step.end_ns)) for step in steps]
    return [*found, StepEvent("between steps", "", "between steps", at_rest)]


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


def shown_step(step: RecordedStep, only: int | None = None) -> Shown:
    """A step that displays itself, or `only` one event of it, counted from 1.

    A row, one for each event of each rank, has `moment`, `what`, `unit`, `rank`, `sent_bytes`, `held_bytes`.
    """
    def page() -> Page:
        drawing = printed(lambda console: show_step(console, step, most=step.size), 2000)
        head = Head(step.title, [step.verdict], step.fault is None, step.about)
        section = Section("step", "Event by event", [{"code": drawing}])
        return Page(html([head], [section]), f"{step.title} step by step")

    return Shown(
        step, step.fault is None, step.verdict,
        f"<{step.title}, {step.about}: {plural(len(step.events), 'event')}; {step.verdict}>",
        show=lambda console: show_step(console, step, only), make_document=step.document,
        rows_of=lambda document: [
            {"moment": number, "what": event["what"], "unit": event["unit"], "rank": rank,
             "sent_bytes": sum(part["sent_bytes"].values()), "held_bytes": sum(part["held_bytes"].values())}
            for number, event in enumerate(document["moments"], 1) for rank, part in enumerate(event["ranks"])],
        make_page=page)


def show_step(console: Console, found: RecordedStep, only: int | None = None, most: int = MOST_RANKS) -> None:
    """Show a line for each event, a column for each of `most` ranks; or `only` one event, counted from 1."""
    show_words(console, Text.assemble((found.title, "bold"), f": {found.about}"))
    states = "  ".join(f"{SHADES[kind][0]} {KIND_WORDS[kind]}" for kind in STATES)
    show_words(console, f"Memory of a rank when an event ends, kB: {states}, and the sum of all kinds. Sends: the most "
                        "kB that a rank sends.", style="dim")
    events = [(number, event) for number, event in enumerate(found.events, 1) if only in (None, number)]
    ranks = range(min(found.size, most))
    sent = [max(sum(did.sent_bytes.values()) for did in event.ranks) for _, event in events]
    show_grid(console, [f"{number:>3} {event.words}" for number, event in events], [
        Column("sends", [f"{count / 1e3:.1f}" if count else "" for count in sent]),
        *(Column(f"rank {rank}", [cell(event.ranks[rank], found.most) for _, event in events], to_the_left=True)
          for rank in ranks)])
    if found.size > len(ranks):
        show_words(console, f"left out: {plural(found.size - len(ranks), 'rank')}; --html FILE draws them all",
                   style="yellow")
    colour = "bold red" if found.fault else "bold green"
    console.print(Text(found.verdict, style=colour), soft_wrap=not console.is_terminal)


def cell(did: RankEvent, most: int) -> Text:
    """The memory of a rank: a bar of its model states, and the sum in kB."""
    drawn = bar({kind: did.held_bytes.get(kind, 0) for kind in STATES}, most, ROOM)
    drawn.pad_right(ROOM - len(drawn))
    return drawn.append(f" {did.total / 1e3:>{FIGURE}.1f}")
