"""The timeline: a step of each row in the terminal, what ranks compute, send and receive, on one time scale.

    rank 0 computes   F forward, B backward, … and . while it only waits for others
           sends      S reduce-scatter, G all-gather, …
           receives   the same, and . until a message begins to arrive

A column is the same time in every line. It shows the letter of the activity that filled most of that time, small if
that was less than half of the column: a message of a microsecond neither vanishes nor looks as if it filled a
millisecond. There are letters, not shades, because there are ten activities to distinguish.

Everything is drawn from recorded spans. Two spans that overlap in one lane and channel are an error, not a picture.
Of the traced steps the one of median length is drawn, because on a busy machine the last may be ten times as long as
the others. A send is drawn until its call returns, since its later time on the wire is not recorded; the legend says
so.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from zerosim.core.words import percentage, short
from zerosim.observe.trace import COLLECTIVES, COMPUTATION, IN, OFFLOAD, OUT, WAITING, RankStep, Span, Trace
from zerosim.show.grid import Column, show_grid, show_words
from zerosim.show.run_document import RunDocument
from zerosim.verdict.pipelines import pass_lines


class Letter(NamedTuple):
    """The letter and colour of an activity; without colour its letter identifies it."""

    letter: str
    colour: str
    words: str


LETTERS = {
    "forward": Letter("F", "bright_blue", "forward"),
    "loss": Letter("L", "bright_blue", "loss"),
    "recompute": Letter("R", "cyan", "recomputation"),
    "backward": Letter("B", "blue", "backward"),
    "update": Letter("U", "magenta", "update"),
    "reduce_scatter": Letter("S", "red", "reduce-scatter"),
    "all_gather": Letter("G", "green", "all-gather"),
    "gather_norms": Letter("N", "red", "norms"),
    "broadcast": Letter("C", "green", "broadcast"),
}
OFFLOADED = Letter("O", "yellow", "offload")
ANYTHING = Letter("X", "white", "other")
WAITS, ENDS = ".", "|"
COLOURS = {each.letter: each.colour for each in [*LETTERS.values(), OFFLOADED, ANYTHING]} | {WAITS: "dim", ENDS: "dim"}

SENT = {LETTERS[name].letter for name in ("reduce_scatter", "all_gather", "gather_norms", "broadcast")}

MOST_RANKS = 4
"""The most ranks of which all are drawn; of more, all but the last place."""

LEAST_TICK = 6
"""The least columns between two numbers of an axis."""

MOST_WIDE = 120
LABEL = len("rank 0 computes ")


class Stretch(NamedTuple):
    """A stretch of time in a lane, and its letter."""

    letter: str
    begin_ns: int
    end_ns: int


@dataclass(frozen=True)
class Scale:
    """The scale of time: `columns` of the terminal are `whole_ns`."""

    whole_ns: int
    columns: int

    def column(self, ns: int) -> int:
        """The column at this time.

        >>> [Scale(100, 10).column(ns) for ns in (0, 9, 10, 99)]
        [0, 0, 1, 9]
        """
        return ns * self.columns // self.whole_ns

    def begin_ns(self, column: int) -> int:
        """The first nanosecond of a column."""
        return -(-column * self.whole_ns // self.columns)


def show_timeline(console: Console, run: RunDocument) -> None:
    """Show a traced step of each row, its axis, and a legend, which says why times may mean little."""
    rows = [(row.name, typical_step(row.trace)) for row in run.rows if row.trace]
    if not rows:
        show_words(console, "No step ran, so there is no timeline.")
        return
    columns = max(min(console.width, MOST_WIDE) - LABEL, 1)
    scale = Scale(max(duration(trace) for _, trace in rows), columns)
    drawn: set[str] = set()
    for name, trace in rows:
        console.print()
        show_words(console, heading(name, trace), style="bold")
        lines = [*lanes(trace, scale)]
        drawn |= {letter for _, line in lines for letter in line.upper()}
        for label, line in [("ms", axis(scale)), *lines]:
            console.print(Text(f"{label:>{LABEL - 1}} ").append_text(coloured(line)), soft_wrap=True)
        if folded(trace):
            show_words(console, folded(trace), style="dim")
    console.print()
    show_legend(console, drawn, scale, run.about_times)


def show_schedules(console: Console, run: RunDocument) -> None:
    """Show the passes of each row's first pipeline, if every pass takes one unit of time and messages take none."""
    for row in run.rows:
        if row.passes:
            split = any(each.what == "W" for mine in row.passes for each in mine)
            backward = "(backward of the input) and [of the weights]" if split else "(backward)"
            console.print()
            show_words(console, f"{row.name}: micro-batches forward and {backward}, in turn", style="bold")
            for rank, line in enumerate(pass_lines(row.passes)):
                console.print(Text(f"{f'rank {rank}':>{LABEL - 1}} {line}"), soft_wrap=True)


def typical_step(trace: Trace) -> Trace:
    """The traced step of median length."""
    by_step: dict[int, list[RankStep]] = {}
    for each in sorted(trace.steps, key=lambda step: step.rank):
        by_step.setdefault(each.step, []).append(each)
    in_order = sorted((Trace(trace.clocks, steps) for steps in by_step.values()), key=duration)
    return in_order[(len(in_order) - 1) // 2]


def duration(trace: Trace) -> int:
    """The nanoseconds from the first rank's beginning to the last one's end."""
    return max(max(step.end_ns for step in trace.steps) - began(trace), 1)


def began(trace: Trace) -> int:
    return min(step.begin_ns for step in trace.steps)


def heading(name: str, trace: Trace) -> str:
    """The heading of a row: its duration, and the hidden share of its communication."""
    found = f"{name}, step {trace.steps[0].step}: {short(duration(trace) / 1e6)} ms"
    if trace.hidden is None:
        return f"{found}, no communication"
    return f"{found}, {percentage(trace.hidden)} of communication hidden behind computation"


def lanes(trace: Trace, scale: Scale) -> Iterator[tuple[str, str]]:
    """A label and a line for each lane of the drawn ranks, with a mark where the step ends before the line does."""
    began_ns = began(trace)
    for step in trace.steps[: drawn_ranks(trace)]:
        end = scale.column(step.end_ns - began_ns - 1) + 1
        for number, (label, found) in enumerate(pieces(step)):
            whose = "" if number else f"rank {step.rank} "
            drawn = line(found, began_ns, scale)
            yield f"{whose}{label:<8}", drawn if end >= len(drawn) else f"{drawn[:end]}{ENDS}{drawn[end + 1 :]}"


def drawn_ranks(trace: Trace) -> int:
    count = len(trace.steps)
    return count if count <= MOST_RANKS else MOST_RANKS - 1


def folded(trace: Trace) -> str:
    """A line about the ranks that are not drawn, if there are any."""
    others = [str(step.rank) for step in trace.steps[drawn_ranks(trace) :]]
    if not others:
        return ""
    return f"and {len(others):,} more ranks, {others[0]} to {others[-1]}: --trace FILE has all"


def pieces(step: RankStep) -> Iterator[tuple[str, list[list[Stretch]]]]:
    """The label and the pieces of each lane, separate for each channel and for waiting, so that none overlap."""
    spans = step.spans
    alone = [
        span for span in spans if span.lane == WAITING or (span.lane in (COLLECTIVES, OFFLOAD) and span.channel == 1)]
    yield "computes", [
        [piece(span) for span in spans if span.lane == COMPUTATION],
        [Stretch(WAITS, span.begin_ns, span.end_ns) for span in alone],
    ]
    channels = sorted({span.channel for span in spans})
    yield "sends", [[piece(span) for span in spans if span.lane == OUT and span.channel == each] for each in channels]
    yield "receives", [
        [part for span in spans if span.lane == IN and span.channel == each for part in received(span)]
        for each in channels
    ]
    carried = [piece(span) for span in spans if span.lane == OFFLOAD and span.channel > 1]
    if carried:
        yield "offloads", [carried]


def piece(span: Span) -> Stretch:
    unknown = OFFLOADED if span.lane == OFFLOAD else ANYTHING
    return Stretch(LETTERS.get(span.what, unknown).letter, span.begin_ns, span.end_ns)


def received(span: Span) -> list[Stretch]:
    """The wait for a message, and its arrival."""
    came_ns = span.begin_ns + span.waited_ns
    return [Stretch(WAITS, span.begin_ns, came_ns), piece(span)._replace(begin_ns=came_ns)]


def line(found: Sequence[Sequence[Stretch]], began_ns: int, scale: Scale) -> str:
    """One character for each column: the activity that filled most of it.

    >>> line([[Stretch("F", 0, 40), Stretch("B", 40, 64)]], 0, Scale(100, 10))
    'FFFFBBb   '
    """
    taken = [Counter[str]() for _ in range(scale.columns)]
    for each in found:
        assert not overlapping(each), "two spans of one lane and channel overlap"
        for letter, begin_ns, end_ns in each:
            begin, end = begin_ns - began_ns, end_ns - began_ns
            for column in range(scale.column(begin), min(scale.column(max(end - 1, begin)) + 1, scale.columns)):
                within = min(end, scale.begin_ns(column + 1)) - max(begin, scale.begin_ns(column))
                taken[column][letter] += max(within, 0)
    return "".join(character(each, scale.whole_ns / scale.columns) for each in taken)


def overlapping(found: Iterable[Stretch]) -> bool:
    in_order = sorted((each.begin_ns, each.end_ns) for each in found)
    return any(begin < end for (_, end), (begin, _) in pairwise(in_order))


def character(taken: Counter[str], column_ns: float) -> str:
    """The letter of the activity that filled most of a column, small for less than half of it.

    >>> character(Counter({"F": 60, ".": 40}), 100), character(Counter({"F": 10, ".": 90}), 100)
    ('F', 'f')
    """
    active = [(ns, letter) for letter, ns in taken.items() if letter != WAITS and ns > 0]
    if active:
        ns, letter = max(active)
        return letter if 2 * ns >= column_ns else letter.lower()
    return WAITS if 2 * taken[WAITS] >= column_ns else " "


def axis(scale: Scale) -> str:
    """The axis in milliseconds; each number begins in the column of its time.

    >>> axis(Scale(50_000_000, 50))
    '0         10        20        30        40        '
    """
    tick_ns = next(tick for tick in ticks() if scale.column(tick) >= LEAST_TICK)
    found = ""
    for number in range(scale.columns):
        at_ns = number * tick_ns
        words = f"{at_ns / 1e6:g}"
        if at_ns >= scale.whole_ns or scale.column(at_ns) + len(words) > scale.columns:
            break
        found = f"{found:<{scale.column(at_ns)}}{words}"
    return f"{found:<{scale.columns}}"


def ticks() -> Iterator[int]:
    """Round numbers of nanoseconds, ascending."""
    power = 1_000
    while True:
        yield from (power, 2 * power, 5 * power)
        power *= 10


def coloured(line: str) -> Text:
    found = Text()
    for each in line:
        found.append(each, style=COLOURS.get(each.upper(), ""))
    return found


def show_legend(console: Console, drawn: set[str], scale: Scale, warned: str) -> None:
    """Explain the letters in the lines above."""
    letters = [each for each in [*LETTERS.values(), OFFLOADED, ANYTHING] if each.letter in drawn]
    words = Text("  ").join(Text.assemble((each.letter, each.colour), f"={each.words}") for each in letters)
    show_words(console, words)
    column = f"{scale.whole_ns / scale.columns / 1e6:.2g}"
    notes = [
        f"A column is {column} ms; a small letter fills less than half of it.",
        ". is waiting for others." * (WAITS in drawn), "| ends the step." * (ENDS in drawn),
        "A message is sent until its call returns; in an exchange one must come before that." * bool(drawn & SENT),
        warned,
    ]
    show_words(console, " ".join(filter(None, notes)), style="dim")


FIGURES = {"step": "ns", "computing": "computation_ns", "waiting": "waiting_ns", "idle": "idle_ns"}
OF_MEMORY = {"offload": "moving_ns", "exposed": "waiting_for_memory_ns"}
"""The time of copies between tiers of memory, and of the step's waits for them."""
LEGEND = (
    "Mean over ranks and traced steps. Waiting: exposed communication. Hidden: the share of the time in collectives "
    "that overlaps computation."
)


def show_times(console: Console, run: RunDocument) -> None:
    """Show milliseconds of each figure, and why times may mean little."""
    rows = [(row.name, row.trace) for row in run.rows if row.trace]
    if not rows:
        return
    copies = any(step.moving_ns for _, trace in rows for step in trace.steps)
    figures = FIGURES | (OF_MEMORY if copies else {}) | {"collectives": "communication_ns"}
    columns = [
        Column(f"{heading}\nms", [
            short(fmean(getattr(step, figure) for step in trace.steps) / 1e6) for _, trace in rows])
        for heading, figure in figures.items()
    ]
    columns.append(Column("hidden\nof it", [percentage(trace.hidden) for _, trace in rows]))
    console.print()
    show_words(console, "The time of a step", style="bold")
    show_grid(console, [name for name, _ in rows], columns)
    show_words(console, f"{LEGEND} {run.about_times}".rstrip(), style="dim")
    console.print()
