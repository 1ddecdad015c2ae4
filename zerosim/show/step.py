"""A recorded step of a stage, event by event: each rank's computation or communication, and its memory after it.

    event    an activity of a step's thread on every rank: a computation, a collective with its messages, or a message
             outside of all collectives
    held     the bytes of each kind that a rank has when an event ends

Times of a small step say little. The order of events is the same on all ranks, so event k is the k-th activity of
each rank, and the drawing needs no clock. Memory is the ledger's when an event ends.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

from zerosim.core.allocation import MODEL_STATES
from zerosim.core.errors import UsageError
from zerosim.core.words import plural
from zerosim.observe.trace import COLLECTIVES, COMPUTATION, OUT, RankStep, Span, Trace
from zerosim.proofs.contents import Contents, contents_of
from zerosim.show.columns import KIND_WORDS
from zerosim.show.drawing import strip
from zerosim.show.film import Panel, film_page, of_step
from zerosim.show.grid import SHADES, Column, bar, show_grid, show_words
from zerosim.show.page import Head, Section, html, note
from zerosim.show.shown import Page, Picture, Shown, printed
from zerosim.training.config import Config

ROOM, FIGURE = 8, 5
"""The columns of a bar, and of the number beside it."""
BESIDE = 4
"""The most ranks that stand beside each other."""
MOST_DRAWN = 16
"""The most ranks whose cells a page draws."""
LIMIT_SECONDS = 60.0
LEGEND = (
    "A column is a rank, and in it a cell a chunk of a unit, in the chunk's colour. w: weights; 2+3: the ranks whose "
    "gradients a sum has, as its stripes show; Σ: all; optimizer state by the initials of its slots; ′: updated in "
    "this step; dashed: allocated and not filled; framed: used by a computation; red: wrong. The stage's code ran on "
    "symbols, which the cells show; in every event it holds and sends as many bytes as in a training.")


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
    config: Config

    @property
    def verdict(self) -> str:
        return f"FAILED: {self.fault}" if self.fault else "PASSED: every bit equal to one process"

    def document(self) -> dict[str, Any]:
        return {
            "schema": "zerosim.step/1", "title": self.title, "about": self.about, "ranks": len(self.events[0].ranks),
            "verdict": self.verdict, "moments": msgspec.to_builtins(self.events, str_keys=True)}


def events_of(trace: Trace) -> list[StepEvent]:
    """The events of a traced step, the last one after the end of all.

    Raises `UsageError` if ranks did different things.
    """
    columns = [list(acts(step)) for step in sorted(trace.steps, key=lambda step: step.rank)]
    names = [[name for name, _ in column] for column in columns]
    if any(of_rank != names[0] for of_rank in names):
        raise UsageError("ranks did different things in this step, so they have no common drawing; zerosim run "
                         "--report FILE.html draws each rank")
    return [
        StepEvent(what, unit, f"{what.replace('_', '-')} {unit}".strip(), [column[number][1] for column in columns])
        for number, (what, unit) in enumerate(names[0])]


def acts(step: RankStep) -> Iterator[tuple[tuple[str, str], RankEvent]]:
    """What the thread of a step does on one rank, one thing after the other: name and unit, and the rank's part."""
    thread = sorted((span for span in step.spans if span.channel == 1), key=lambda span: span.begin_ns)
    collectives = [span for span in thread if span.lane == COLLECTIVES]
    changes = [at for at, _ in step.memory]

    def part(at_ns: int, messages: Sequence[Span] = ()) -> RankEvent:
        sent: Counter[Any] = Counter()
        for message in messages:
            sent[message.peer] += message.bytes
        _, held = step.memory[max(bisect_right(changes, at_ns) - 1, 0)]
        return RankEvent(dict(sent), {kind: count for kind, count in held.items() if count})

    def within(message: Span, collective: Span) -> bool:
        return message.lane == OUT and collective.begin_ns <= message.begin_ns <= collective.end_ns

    for span in thread:
        if span.lane == COMPUTATION:
            yield (span.what, span.unit), part(span.end_ns)
        elif span.lane == COLLECTIVES:
            yield (span.what, span.unit), part(span.end_ns, [message for message in thread if within(message, span)])
        elif span.lane == OUT and not any(within(span, collective) for collective in collectives):
            yield ("message", ""), part(span.end_ns, [span])
    yield ("between steps", ""), part(step.end_ns)


def shown_step(step: RecordedStep) -> Shown:
    """A step that displays itself.

    A row, one for each event of each rank, has `moment`, `what`, `unit`, `rank`, `sent_bytes`, `held_bytes`.
    """
    return Shown(
        step, step.fault is None, step.verdict,
        f"<{step.title}, {step.about}: {plural(len(step.events), 'event')}; {step.verdict}>",
        show=lambda console: show_step(console, step), make_document=step.document,
        rows_of=lambda document: [
            {"moment": number, "what": event["what"], "unit": event["unit"], "rank": rank,
             "sent_bytes": sum(part["sent_bytes"].values()), "held_bytes": sum(part["held_bytes"].values())}
            for number, event in enumerate(document["moments"], 1) for rank, part in enumerate(event["ranks"])],
        draw=lambda: Picture(strip(film_of(step)[0], [step.about, *step.verdict.split("\n")]), step.title),
        make_page=lambda: steps_page([step]))


def shown_steps(steps: Sequence[RecordedStep]) -> Shown:
    """The steps of several stages, which a page shows at the same computation; a row has also `stage`."""
    parts = [shown_step(step) for step in steps]

    def show(console: Console) -> None:
        for part in parts:
            part.show(console)

    return Shown(
        steps, all(part.passed for part in parts), "; ".join(dict.fromkeys(part.verdict for part in parts)),
        "\n".join(map(repr, parts)), show=show,
        make_document=lambda: {"schema": "zerosim.steps/1", "steps": [part.document for part in parts]},
        rows_of=lambda document: [{"stage": step.title} | row for step, part in zip(steps, parts, strict=True)
                                  for row in part.rows()],
        make_page=lambda: steps_page(steps))


def steps_page(steps: Sequence[RecordedStep]) -> Page:
    """The page of a step, or of several stages at the same computation; as text where the code has no symbols."""
    title, about = " · ".join(step.title for step in steps), "; ".join(dict.fromkeys(step.about for step in steps))
    try:
        films = [film_of(step) for step in steps]
    except UsageError as error:
        head = Head(title, [step.verdict for step in steps], all(step.fault is None for step in steps), about)
        why = note(str(error))
        drawings = [{"code": printed(partial(show_step, step=step), 2000)} for step in steps]
        return Page(html([head], [Section("step", "Event by event", [why, *drawings])]), f"{title} step by step")
    about = "; ".join([about, *(f"the cells of {step.title} are not those of its training: {difference}"
                                for step, (_, difference) in zip(steps, films, strict=True) if difference)])
    faults = [f"{step.title}: {line}" for step in steps if step.fault for line in step.verdict.split("\n")]
    head = Head(title, faults or [steps[0].verdict], not faults, about)
    return film_page(head, [panel for panel, _ in films], LEGEND)


def film_of(step: RecordedStep) -> tuple[Panel, str | None]:
    """The film of a step, and the first difference between its run on symbols and the training, or None.

    Raises `UsageError` for too many ranks, and for code that does not run on symbols.
    """
    if step.config.ranks > MOST_DRAWN:
        raise UsageError(f"at most {MOST_DRAWN} ranks are drawn, and {step.config.ranks} are too many")
    try:
        contents = contents_of(step.config, LIMIT_SECONDS)
    except Exception as error:    # of a user's code
        raise UsageError(f"The cells of this step are not drawn: {type(error).__name__}: {error}") from error
    beside = [[part.held_bytes for part in event.ranks] for event in step.events]
    return of_step(step.title, contents, beside), first_difference(contents, step.events)


def first_difference(contents: Contents, events: Sequence[StepEvent]) -> str | None:
    """The first event of a training in which a rank sends or holds other bytes than the same code on symbols."""
    sent, ends = Counter[tuple[int, int]](), [moment for moment in contents.moments[1:] if moment.ends]
    names = [[(event.what, event.unit) for event in run] for run in (events, ends)]
    if names[0] != names[1]:
        return f"the events of its training are {names[0]}, those of its run on symbols {names[1]}"
    trained = iter(events)
    for moment in contents.moments[1:]:
        for message in moment.messages:
            sent[message.source, message.to] += contents.sent_bytes(message)
        for rank, part in enumerate(next(trained).ranks if moment.ends else ()):
            to = {peer: sent.pop((rank, peer)) for peer in range(contents.size) if (rank, peer) in sent}
            held, due = ({kind: count for kind, count in held_bytes.items() if kind in MODEL_STATES and count}
                         for held_bytes in (moment.ranks[rank].held_bytes, part.held_bytes))
            if (held, to) != (due, part.sent_bytes):
                return (f"{moment.what} {moment.unit}: rank {rank} of its training holds {due} and sends "
                        f"{part.sent_bytes} bytes to each rank, its symbols stand for {held} and {to}")
    return None


def show_step(console: Console, step: RecordedStep) -> None:
    """Show a line for each event, with a column for each rank: a bar of its model states, and the sum in kB."""
    show_words(console, Text.assemble((step.title, "bold"), f": {step.about}"))
    states = "  ".join(f"{SHADES[kind][0]} {KIND_WORDS[kind]}" for kind in MODEL_STATES)
    show_words(console, f"Memory of a rank when an event ends, kB: {states}, and the sum of all kinds. Sends: the most "
                        "kB that a rank sends.", style="dim")
    most = max(part.total for event in step.events for part in event.ranks)

    def cell(part: RankEvent) -> Text:
        drawn = bar({kind: part.held_bytes.get(kind, 0) for kind in MODEL_STATES}, most, ROOM)
        drawn.pad_right(ROOM - len(drawn))
        return drawn.append(f" {part.total / 1e3:>{FIGURE}.1f}")

    names = [f"{number:>3} {event.words}" for number, event in enumerate(step.events, 1)]
    sent = [max(sum(part.sent_bytes.values()) for part in event.ranks) for event in step.events]
    sends = Column("sends", [f"{count / 1e3:.1f}" if count else "" for count in sent])
    ranks = [Column(f"rank {rank}", [cell(part) for part in parts], to_the_left=True)
             for rank, parts in enumerate(zip(*(event.ranks for event in step.events), strict=True))]
    for first in range(0, len(ranks), BESIDE):
        show_grid(console, names, [sends, *ranks[first : first + BESIDE]])
    console.print(Text(step.verdict, style="bold red" if step.fault else "bold green"),
                  soft_wrap=not console.is_terminal)
