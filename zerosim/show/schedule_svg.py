"""A schedule or a step as a picture: a lane for each rank, rounds or events from left to right.

    stack     a rank's chunks after a round, one cell above the other
    gap       the space between two columns of stacks, which arrows cross, one for each message
    cell      in a step: a rank's part of an event, a letter on the colour of the activity, every other unit paler
    bar       below it, the bytes of each kind in its memory when the event ends, on one scale for all ranks

It is SVG 1.1 written by hand. Cells have their own light ground and all else is of middle tone, so that the
picture is legible on white and on dark pages.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

from zerosim.errors import UsageError
from zerosim.payloads.terms import Sum
from zerosim.show.activities import ACTIVITIES, activity, in_order, is_paler
from zerosim.show.legend import KIND_WORDS
from zerosim.show.page.pictures import KIND_COLOURS
from zerosim.show.schedule import Arrow, Cell, Schedule
from zerosim.show.step import RankEvent, RecordedStep, StepEvent
from zerosim.show.timeline import LETTERS

MOST_CELLS, MOST_STEP_CELLS = 20_000, 5_000
"""The most cells in the picture of a schedule and of a step."""

CELL_HEIGHT = 18
GAP = 100
"""The width in pixels, without the words on the arrow that crosses it."""
LANE_GAP = 20
LEFT = 84
TOP = 78
LINE = 18
MARGIN = 16
CHARACTER = 6.7
"""Width of a character of a cell, in pixels."""
WIDE_CHARACTER = 7.6
"""The largest width of a character elsewhere, in pixels."""


CELL, STRIP, BAR, LANE = 52, 20, 54, 96
"""Pixels of a step: the width of an event, the heights of a cell, of the longest bar, and of a whole lane."""
STEP_LEFT = 76
SENDS = "; beside a letter the kB that a rank sends; above a lane: event · layer"
COLOURS = dict(zip(KIND_WORDS, KIND_COLOURS, strict=True))


class Tone(NamedTuple):
    """A colour for lines, and a lighter one for grounds."""

    line: str
    ground: str


TONES = (
    Tone("#2a7fc0", "#d3e6f5"), Tone("#d2601a", "#fae0cf"), Tone("#1f9470", "#cdeee2"), Tone("#a8509b", "#f1daee"),
    Tone("#a88200", "#f5e9bd"), Tone("#d0433f", "#f9d7d6"), Tone("#1594a8", "#cdedf2"), Tone("#8c6d46", "#ebe0d1"),
)
"""The colours of the chunks, in turn."""

SEVERAL = Tone("#808080", "#e8e8e8")

STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#808080}.name{font-size:16px;font-weight:600}.cell "
    "text,.cargo{font:11px ui-monospace,monospace;fill:#1c1c1c;text-anchor:middle}.cell "
    ".new{font-weight:700}.place{font:10px "
    "ui-monospace,monospace;text-anchor:end}.heading{text-anchor:middle;font-weight:600}.message "
    "path{fill:none;stroke-width:1.6}.failed{fill:#d0433f;font-weight:600}.passed{fill:#1f9470;font-weight:600}"
)


def schedule_picture(schedule: Schedule, only: int | None = None) -> str:
    """The schedule as an SVG file; or `only` one round, with the state before it.

    Raises `UsageError` when it has too many cells.

    >>> from zerosim.show.schedule import scheduled
    >>> from zerosim.teach.proofs.subject import named_subject
    >>> schedule_picture(scheduled(named_subject("tree.broadcast"), 4)).count('class="message"')
    3
    """
    cells = cell_count(schedule) if only is None else 2 * schedule.size * schedule.chunks
    check_cells(schedule.title, cells, MOST_CELLS)
    return SchedulePicture(schedule, only).file()


def step_picture(found: RecordedStep, only: int | None = None) -> str:
    """The step as an SVG file; or `only` one event, counted from 1.

    Raises `UsageError` when it has too many cells.

    >>> event = StepEvent("forward", "layers.0", [RankEvent({1: 8}, {"parameters": 24}), RankEvent({}, {})])
    >>> step_picture(RecordedStep("zero3", "a step on 2 ranks", [event], None)).count('class="cell"')
    2
    """
    numbers = range(1, len(found.events) + 1) if only is None else [only]
    check_cells(found.title, len(numbers) * found.size, MOST_STEP_CELLS)
    return StepPicture(found, list(numbers)).file()


def check_cells(title: str, cells: int, most: int) -> None:
    """Refuse a picture that is too large to look at."""
    if cells > most:
        raise UsageError(
            f"a picture of {title} would have {cells:,} cells, at most {most:,} are drawn: "
            "give fewer --ranks, a --round, or --json for the same as data")


def cell_count(schedule: Schedule) -> int:
    return len(schedule.states) * schedule.size * schedule.chunks


class SvgPicture:
    """A picture with its words; a subclass sets `width` and `height` in pixels and has the elements below them."""

    width: int
    height: int

    def __init__(self, title: str, subtitle: str, verdict: str) -> None:
        self.title = title
        self.subtitle = subtitle
        self.verdict = verdict

    def file(self) -> str:
        head = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'width="{self.width}" height="{self.height}" role="img">',
            f"<title>{escape(self.title, quote=False)}</title>",
            f"<desc>{escape(f'{self.subtitle}; {self.verdict}', quote=False)}</desc>",
            f"<style>{STYLE}</style>", text(MARGIN, 26, self.title, "name"), text(MARGIN, 44, self.subtitle)]
        return "\n".join([*head, *self.elements(), "</svg>"]) + "\n"

    def elements(self) -> Iterator[str]:
        raise NotImplementedError


class SchedulePicture(SvgPicture):
    """The picture of a schedule: positions in pixels, and elements."""

    def __init__(self, schedule: Schedule, only: int | None = None) -> None:
        self.schedule = schedule
        self.states = range(len(schedule.states)) if only is None else range(max(only - 1, 0), only + 1)
        """The states that are drawn, with the messages between them."""
        widest = max((len(cell.text) for _, cell in schedule.news()), default=2)
        self.cell_width = round(widest * CHARACTER) + 12
        self.gap = GAP + round(max((len(self.cargo(arrow)) for arrow in schedule.arrows), default=0) * CHARACTER)
        self.stack_height = max(schedule.chunks, 1) * CELL_HEIGHT
        self.lane_height = self.stack_height + LANE_GAP
        self.bottom = TOP + schedule.size * self.lane_height
        subtitle, verdict = f"{schedule.cost}; {schedule.about}", schedule.verdict.split("; ")
        columns = self.left(self.states[-1]) + self.cell_width
        lines = [schedule.title, subtitle, self.legend(), *verdict]
        self.width = max(columns, round(max(map(len, lines)) * WIDE_CHARACTER) + MARGIN) + MARGIN
        self.height = self.bottom + LINE * (1 + len(verdict)) + MARGIN
        super().__init__(schedule.title, subtitle, schedule.verdict)

    def left(self, state: int) -> int:
        """The left side of the stacks after a round."""
        return LEFT + (state - self.states[0]) * (self.cell_width + self.gap)

    def top(self, rank: int, place: int = 0) -> int:
        return TOP + rank * self.lane_height + place * CELL_HEIGHT

    def middle(self, rank: int, places: Sequence[int]) -> float:
        """The middle of the cells of these places, or of the stack if there are none."""
        if not places:
            return self.top(rank) + self.stack_height / 2
        return self.top(rank) + (sum(places) / len(places) + 0.5) * CELL_HEIGHT

    def elements(self) -> Iterator[str]:
        schedule = self.schedule
        for state in self.states:
            yield text(self.left(state) + self.cell_width / 2, TOP - 10, schedule.heading(state), "heading")
        for rank in range(schedule.size):
            yield from self.lane(rank)
        for arrow in schedule.arrows:
            if arrow.round in self.states[1:]:
                yield from self.message(arrow)
        for state in self.states:
            for rank, cells in enumerate(schedule.states[state]):
                yield from self.stack(state, rank, cells)
        yield text(MARGIN, self.bottom + LINE, self.legend())
        for line, words in enumerate(self.verdict.split("; "), 2):
            yield text(MARGIN, self.bottom + line * LINE, words, "failed" if schedule.faults else "passed")

    def legend(self) -> str:
        """The legend of the signs that occur."""
        cells = [cell for _, cell in self.schedule.news()]
        entries = {
            "2+3+0: ranks in order of addition": any(isinstance(cell.holds, Sum) for cell in cells),
            "1…3: 1+2+3": self.schedule.abbreviates,
            "2[1]: chunk 1 of rank 2": self.schedule.subject.kind.displacing,
            "⊕ adds what arrives": any(arrow.reduced for arrow in self.schedule.arrows),
            "✓ complete": any(cell.complete for cell in cells),
            "(1): not yet in its final place": any(cell.outside for cell in cells),
        }
        return "; ".join(words for words, occurs in entries.items() if occurs)

    def lane(self, rank: int) -> Iterator[str]:
        """The name of a rank, and the numbers of the chunks beside its first stack."""
        yield text(MARGIN, self.middle(rank, ()) + 4, f"rank {rank}")
        if not self.schedule.whole:
            for place in range(self.schedule.chunks):
                yield text(LEFT - 5, self.top(rank, place) + 12.5, str(place), "place")

    def stack(self, state: int, rank: int, cells: Sequence[Cell]) -> Iterator[str]:
        x = self.left(state)
        if not cells:
            yield rectangle(Box(x, self.top(rank), self.cell_width, CELL_HEIGHT), SEVERAL.line, SEVERAL.ground)
        for cell in cells:
            new = 0 < state == cell.since
            tone = tone_of([cell.place])
            box = Box(x, self.top(rank, cell.place), self.cell_width, CELL_HEIGHT)
            empty = cell.text == "·"
            yield '<g class="cell">' + rectangle(
                box, tone.line if new else "#b0b0b0", "#f4f4f4" if empty else tone.ground, 2 if new else 0.7
            )
            if not empty:
                yield text(x + self.cell_width / 2, box.y + 13, cell.text, "new" if new else "")
            yield "</g>"

    def message(self, arrow: Arrow) -> Iterator[str]:
        """An arrow across the gap, from its source cells to its destination cells, with its cargo near its tail."""
        tone = tone_of(arrow.chunks)
        start, end = self.left(arrow.round) - self.gap + 5, self.left(arrow.round) - 5
        tail, head = self.middle(arrow.source, arrow.chunks), self.middle(arrow.to, arrow.lands)
        tip = end - 15 if arrow.reduced else end
        cargo = self.cargo(arrow)
        pill = Box(start + 6, tail - 8, round(len(cargo) * CHARACTER) + 10, 16)
        curve = f"M{start} {tail:g}H{pill.right}C{pill.right + 34} {tail:g} {tip - 40} {head:g} {tip - 5} {head:g}"
        yield f'<g class="message" stroke="{tone.line}"><title>{escape(self.arrow_title(arrow), quote=False)}</title>'
        yield f'<path d="{curve}{brackets(start - 2, [self.top(arrow.source, c) for c in arrow.chunks])}"/>'
        yield f'<path d="M{tip - 7} {head - 4:g}L{tip} {head:g}L{tip - 7} {head + 4:g}z" style="fill:{tone.line}"/>'
        yield f'<path d="{brackets(end + 2, [self.top(arrow.to, place) for place in arrow.lands])}"/>'
        if arrow.reduced:
            yield f'<circle cx="{end - 6}" cy="{head:g}" r="6" fill="{tone.ground}"/>'
            yield f'<path d="M{end - 9} {head:g}h6M{end - 6} {head - 3:g}v6"/>'
        yield rectangle(pill, tone.line, tone.ground, 1, radius=8)
        yield f'<text class="cargo" stroke="none" x="{pill.x + pill.width / 2:g}" y="{tail + 4:g}">{cargo}</text></g>'

    def cargo(self, arrow: Arrow) -> str:
        """The cargo of a message, in a few characters: the number of a chunk stands beside its cell."""
        return self.schedule.cargo(arrow).removeprefix("chunks ").removeprefix("chunk ")

    def arrow_title(self, arrow: Arrow) -> str:
        what = "adds" if arrow.reduced else "receives"
        return f"round {arrow.round}: rank {arrow.to} {what} {self.schedule.cargo(arrow)} of rank {arrow.source}"


@dataclass(frozen=True)
class Box:
    x: float
    y: float
    width: float
    height: float

    @property
    def right(self) -> float:
        return self.x + self.width


def tone_of(chunks: Sequence[int]) -> Tone:
    return TONES[chunks[0] % len(TONES)] if len(chunks) == 1 else SEVERAL


def rectangle(box: Box, line: str, ground: str, stroke: float = 1, radius: int = 3) -> str:
    return (
        f'<rect x="{box.x:g}" y="{box.y:g}" width="{box.width:g}" height="{box.height:g}" rx="{radius}" '
        f'fill="{ground}" stroke="{line}" stroke-width="{stroke:g}"/>'
    )


def brackets(x: float, tops: Sequence[int]) -> str:
    """A bar beside each of several cells; a single one needs none."""
    return "".join(f"M{x:g} {top + 2}v{CELL_HEIGHT - 4}" for top in tops) if len(tops) > 1 else ""


def text(x: float, y: float, words: str, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x:g}" y="{y:g}">{escape(words, quote=False)}</text>'


class StepPicture(SvgPicture):
    """The picture of a step: positions in pixels, and elements."""

    def __init__(self, found: RecordedStep, numbers: list[int]) -> None:
        self.found = found
        self.events = [(number, found.events[number - 1]) for number in numbers]
        self.units = list(dict.fromkeys(event.unit for event in found.events if event.unit))
        self.activities = in_order(activity(event.what) for _, event in self.events)
        self.bottom = TOP + found.size * LANE
        letters = dict.fromkeys((event.letter, event.what) for _, event in self.events if event.letter)
        self.letters = ", ".join(f"{letter} {LETTERS[what].words if what in LETTERS else what}"
                                 for letter, what in letters)
        lines = [found.about, found.verdict, self.letters + SENDS, "".join(f"{each:5}" for each in self.activities),
                 "".join(f"{words:5}" for words in (*KIND_WORDS.values(), "longest bar: 123.4 kB"))]
        self.width = max(STEP_LEFT + len(self.events) * CELL, round(max(map(len, lines)) * WIDE_CHARACTER)) + 2 * MARGIN
        self.height = self.bottom + 4 * LINE + MARGIN
        super().__init__(found.title, found.about, found.verdict)

    def elements(self) -> Iterator[str]:
        found = self.found
        for place, (number, event) in enumerate(self.events):
            yield text(self.left(place) + CELL / 2, TOP - 10, heading(number, event.unit), "heading")
        for rank in range(found.size):
            yield text(MARGIN, self.top(rank) + 14, f"rank {rank}")
            floor = self.top(rank) + STRIP + BAR
            yield f'<path d="M{STEP_LEFT} {floor}H{self.left(len(self.events))}" stroke="#808080" stroke-width="0.7"/>'
            for place, (_, event) in enumerate(self.events):
                yield from self.cell(place, rank, event)
        yield from self.legend(self.bottom + LINE, [(each, ACTIVITIES[each]) for each in self.activities])
        yield text(MARGIN, self.bottom + 2 * LINE, self.letters + SENDS)
        kinds = [(KIND_WORDS[kind], each) for kind, each in COLOURS.items()]
        yield from self.legend(self.bottom + 3 * LINE, [*kinds, (f"longest bar: {kilobytes(found.most)} kB", "none")])
        yield text(MARGIN, self.bottom + 4 * LINE, found.verdict, "failed" if found.fault else "passed")

    def left(self, place: int) -> int:
        return STEP_LEFT + place * CELL

    def top(self, rank: int) -> int:
        return TOP + rank * LANE

    def cell(self, place: int, rank: int, event: StepEvent) -> Iterator[str]:
        """The cell of a rank in an event: its activity, and its memory from the bottom up."""
        did, x, y, colour = event.ranks[rank], self.left(place), self.top(rank), ACTIVITIES[activity(event.what)]
        sends = sum(did.sent.values())
        title = f"rank {rank}, {event.words}: " + f"sends {kilobytes(sends)} kB, " * bool(sends)
        yield f'<g class="cell"><title>{escape(f"{title}holds {kilobytes(did.total)} kB", quote=False)}</title>'
        yield (f'<rect x="{x + 1}" y="{y}" width="{CELL - 2}" height="{STRIP}" rx="3" fill="{colour}" '
               f'fill-opacity="{0.4 if is_paler(event.unit, self.units) else 0.8}" stroke="{colour}"/>')
        yield text(x + CELL / 2, y + 14, f"{event.letter} {kilobytes(sends)}" if sends else event.letter)
        yield from self.bars(x, y + STRIP + BAR, did)
        yield "</g>"

    def bars(self, x: int, bottom: float, did: RankEvent) -> Iterator[str]:
        for kind, colour in COLOURS.items():
            height = did.held.get(kind, 0) * BAR / self.found.most
            bottom -= height
            if height:
                yield (f'<rect x="{x + 4}" y="{bottom:.2f}" width="{CELL - 8}" height="{height:.2f}" '
                       f'fill="{colour}"/>')

    def legend(self, y: int, entries: list[tuple[str, str]]) -> Iterator[str]:
        """Patches of colour, each with its word."""
        x = float(MARGIN)
        for words, colour in entries:
            yield f'<rect x="{x:g}" y="{y - 10}" width="11" height="11" rx="2" fill="{colour}"/>'
            yield text(x + 16, y, words)
            x += 34 + len(words) * CHARACTER


def heading(number: int, unit: str) -> str:
    """The number of an event and of its layer, if that is short.

    >>> heading(3, "layers.1"), heading(4, ""), heading(5, "embedding+head")
    ('3 · 1', '4', '5')
    """
    layer = unit.removeprefix("layers.")
    return f"{number} · {layer}" if 0 < len(layer) <= 4 else str(number)


def kilobytes(count: int) -> str:
    """
    >>> kilobytes(2140)
    '2.1'
    """
    return f"{count / 1e3:.1f}"
