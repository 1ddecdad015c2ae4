"""A schedule as a picture: a lane for each rank, rounds from left to right.

    stack     a rank's chunks after a round, one cell above the other
    gap       the space between two columns of stacks, which arrows cross, one for each message

It is SVG 1.1 written by hand. Cells have their own light ground and all else is of middle tone, so that the
picture is legible on white and on dark pages.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

from zerosim.core.errors import UsageError
from zerosim.core.terms import Sum
from zerosim.show.schedule import Arrow, Cell, Schedule

MOST_CELLS = 20_000
"""The most cells in the picture of a schedule."""

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
    >>> from zerosim.proofs.subject import named_subject
    >>> schedule_picture(scheduled(named_subject("tree.broadcast"), 4)).count('class="message"')
    3
    """
    cells = cell_count(schedule) if only is None else 2 * schedule.size * schedule.chunks
    if cells > MOST_CELLS:
        raise UsageError(
            f"a picture of {schedule.title} would have {cells:,} cells, at most {MOST_CELLS:,} are drawn: "
            "give fewer --ranks, a --round, or --json for the same as data")
    return SchedulePicture(schedule, only).file()


def cell_count(schedule: Schedule) -> int:
    return len(schedule.states) * schedule.size * schedule.chunks


class SchedulePicture:
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
        self.subtitle = f"{schedule.cost}; {schedule.about}"
        verdict = schedule.verdict.split("; ")
        columns = self.left(self.states[-1]) + self.cell_width
        lines = [schedule.title, self.subtitle, self.legend(), *verdict]
        self.width = max(columns, round(max(map(len, lines)) * WIDE_CHARACTER) + MARGIN) + MARGIN
        self.height = self.bottom + LINE * (1 + len(verdict)) + MARGIN

    def file(self) -> str:
        title = self.schedule.title
        head = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'width="{self.width}" height="{self.height}" role="img">',
            f"<title>{escape(title, quote=False)}</title>",
            f"<desc>{escape(f'{self.subtitle}; {self.schedule.verdict}', quote=False)}</desc>",
            f"<style>{STYLE}</style>", text(MARGIN, 26, title, "name"), text(MARGIN, 44, self.subtitle)]
        return "\n".join([*head, *self.elements(), "</svg>"]) + "\n"

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
        for line, words in enumerate(schedule.verdict.split("; "), 2):
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
                box, tone.line if new else "#7d7d7d", "#f4f4f4" if empty else tone.ground, 2 if new else 0.7
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
