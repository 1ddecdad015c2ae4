"""A schedule drawn: a lane for each rank, rounds one after the other, in the terminal and as SVG.

    stack     a rank's chunks after a round, one cell beside or above the other
    gap       in SVG, the space between two columns of stacks, which arrows cross, one for each message

Both drawings have the cells, the arrows and the legend of this module. SVG is written by hand: cells have their own
light ground and all else is of middle tone, so that it is legible on white and on dark pages.
"""

from collections.abc import Iterator, Sequence
from html import escape

from rich.console import Console
from rich.text import Text

from zerosim.core.errors import UsageError
from zerosim.core.terms import Sum
from zerosim.show.grid import Column, show_grid, show_words
from zerosim.show.page import Head, Section, html
from zerosim.show.schedule import Arrow, Cell, Schedule, schedule_document
from zerosim.show.shown import Page, Picture, Shown

MOST_CELLS = 20_000
"""The most cells in the picture of a schedule."""
MOST_RANKS, MOST_ROUNDS = 16, 32
"""The most ranks, and rounds, in the terminal."""
COLOURS = (
    ("cyan", "#2a7fc0", "#d3e6f5"), ("magenta", "#d2601a", "#fae0cf"), ("yellow", "#1f9470", "#cdeee2"),
    ("blue", "#a8509b", "#f1daee"), ("bright_cyan", "#a88200", "#f5e9bd"), ("bright_magenta", "#d0433f", "#f9d7d6"),
    ("bright_yellow", "#1594a8", "#cdedf2"), ("bright_blue", "#8c6d46", "#ebe0d1"))
"""The colours of the chunks, in turn: in the terminal; of lines and of grounds in SVG."""
SEVERAL = ("", "#808080", "#e8e8e8")
"""The colours of several chunks together."""

CELL_HEIGHT, GAP, LANE_GAP, LEFT, TOP, LINE, MARGIN = 18, 100, 20, 84, 78, 18, 16
"""Pixels. A gap is wider by the words on the arrows that cross it."""
CHARACTER, WIDE_CHARACTER = 6.7, 7.6
"""The width of a character of a cell, and the largest elsewhere, in pixels."""
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#808080}.name{font-size:16px;font-weight:600}.cell "
    "text,.cargo{font:11px ui-monospace,monospace;fill:#1c1c1c;text-anchor:middle}.cell "
    ".new{font-weight:700}.place{font:10px "
    "ui-monospace,monospace;text-anchor:end}.heading{text-anchor:middle;font-weight:600}.message "
    "path{fill:none;stroke-width:1.6}.failed{fill:#d0433f;font-weight:600}.passed{fill:#1f9470;font-weight:600}"
)


def shown_schedule(schedule: Schedule, only: int | None = None) -> Shown:
    """A schedule that displays itself, or `only` one round of it, at which a page opens.

    A row, one for each message, has `round`, `source`, `to`, `chunks`, `reduced`.
    """
    return Shown(
        schedule, not schedule.faults, schedule.verdict,
        f"<{schedule.title}: {schedule.cost}; {schedule.verdict}>",
        show=lambda console: show_schedule(console, schedule, only),
        make_document=lambda: schedule_document(schedule), rows_of=lambda document: list(document["messages"]),
        draw=lambda: Picture(schedule_picture(schedule, only), schedule.title),
        make_page=lambda: Page(schedule_page(schedule, only or 0), f"{schedule.title} step by step"))


def schedule_page(schedule: Schedule, first: int = 0) -> str:
    """The HTML of one collective, shown round by round from round `first` on."""
    frames = [schedule_picture(schedule, number) for number in range(len(schedule.states))]
    head = Head(schedule.title, schedule.verdict.split("; "), not schedule.faults, f"{schedule.cost}; {schedule.about}")
    return html([head], [Section("schedule", "Round by round", [{"frames": frames, "first": first}])])


def colours(chunks: Sequence[int]) -> tuple[str, str, str]:
    return COLOURS[chunks[0] % len(COLOURS)] if len(chunks) == 1 else SEVERAL


def legend(schedule: Schedule) -> str:
    """The legend of the signs that occur."""
    cells = [cell for _, cell in schedule.news()]
    entries = {
        "2+3+0: ranks in order of addition": any(isinstance(cell.holds, Sum) for cell in cells),
        "1…3: 1+2+3": any("…" in cell.text for cell in cells),
        "2[1]: chunk 1 of rank 2": schedule.subject.kind.displacing,
        "⊕ adds what arrives": any(arrow.reduced for arrow in schedule.arrows),
        "✓ complete": any(cell.complete for cell in cells),
        "(1): not yet in its final place": any(cell.outside for cell in cells),
    }
    return "; ".join(words for words, occurs in entries.items() if occurs)


def cell_count(schedule: Schedule) -> int:
    return len(schedule.states) * schedule.size * schedule.chunks


def show_schedule(console: Console, schedule: Schedule, only: int | None = None) -> None:
    """Print the first rounds of a schedule, a line for each of the first ranks, or `only` one round."""
    show_words(console, Text.assemble((schedule.title, "bold"), f": {schedule.cost}; {schedule.about}"))
    show_words(console, "; ".join(filter(None, [legend(schedule), "› new"])), style="dim")
    ranks, states = range(min(schedule.size, MOST_RANKS)), range(len(schedule.states))
    for state in states[:MOST_ROUNDS] if only is None else [only]:
        arrived = [[arrow for arrow in schedule.arrows_in(state) if arrow.to == rank] for rank in ranks]
        arrows = [Text("\n").join(
            Text(f"{arrow.source} ─{schedule.cargo(arrow)}─{'⊕' if arrow.reduced else '─'}▶", colours(arrow.chunks)[0])
            for arrow in of_rank) for of_rank in arrived]
        columns = [Column("arrives", arrows)] * any(arrived)
        columns += [Column(schedule.place_name(place), [
            printed_cell(schedule.states[state][rank], place, state) for rank in ranks], to_the_left=True)
            for place in range(min(schedule.chunks, MOST_RANKS))]
        show_grid(console, [f"rank {rank}" for rank in ranks], columns, schedule.heading(state))
    left_out = [f"ranks {MOST_RANKS}…{schedule.size - 1}"] * (schedule.size > MOST_RANKS)
    left_out += [f"rounds {MOST_ROUNDS}…{states[-1]}"] * (only is None and len(states) > MOST_ROUNDS)
    if left_out:
        ways = "--json FILE lists them all" + ", --svg FILE draws them" * (cell_count(schedule) <= MOST_CELLS)
        show_words(console, f"left out: {', '.join(left_out)}; {ways}", style="yellow")
    colour = "bold red" if schedule.faults else "bold green"
    console.print(Text(schedule.verdict, style=colour), soft_wrap=not console.is_terminal)
    if schedule.diagnosis and schedule.diagnosis.cause:
        console.print(Text(f"why: {schedule.diagnosis.cause}"), soft_wrap=not console.is_terminal)


def printed_cell(cells: Sequence[Cell], place: int, state: int) -> Text:
    """The cell of a place, marked if it is new in this state."""
    cell = next((cell for cell in cells if cell.place == place), None)
    if cell is None:
        return Text()
    new = 0 < state == cell.since
    return Text.assemble(("› " if new else "  ", "bold"), (cell.text, f"bold {colours([place])[0]}" if new else ""))


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
        self.verdict = schedule.verdict.split("; ")
        columns = self.left(self.states[-1]) + self.cell_width
        lines = [schedule.title, self.subtitle, legend(schedule), *self.verdict]
        self.width = max(columns, round(max(map(len, lines)) * WIDE_CHARACTER) + MARGIN) + MARGIN
        self.height = self.bottom + LINE * (1 + len(self.verdict)) + MARGIN

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
            yield text(MARGIN, self.middle(rank, ()) + 4, f"rank {rank}")
            for place in range(schedule.chunks) if not schedule.whole else ():
                yield text(LEFT - 5, self.top(rank, place) + 12.5, str(place), "place")
        for arrow in schedule.arrows:
            if arrow.round in self.states[1:]:
                yield from self.message(arrow)
        for state in self.states:
            for rank, cells in enumerate(schedule.states[state]):
                yield from self.stack(state, rank, cells)
        yield text(MARGIN, self.bottom + LINE, legend(schedule))
        for line, words in enumerate(self.verdict, 2):
            yield text(MARGIN, self.bottom + line * LINE, words, "failed" if schedule.faults else "passed")

    def stack(self, state: int, rank: int, cells: Sequence[Cell]) -> Iterator[str]:
        x = self.left(state)
        if not cells:
            yield rectangle(x, self.top(rank), self.cell_width, CELL_HEIGHT, SEVERAL)
        for cell in cells:
            new, empty, (_, line, ground) = 0 < state == cell.since, cell.text == "·", colours([cell.place])
            y = self.top(rank, cell.place)
            tone = ("", line if new else "#7d7d7d", "#f4f4f4" if empty else ground)
            yield f'<g class="cell">{rectangle(x, y, self.cell_width, CELL_HEIGHT, tone, 2 if new else 0.7)}'
            if not empty:
                yield text(x + self.cell_width / 2, y + 13, cell.text, "new" if new else "")
            yield "</g>"

    def message(self, arrow: Arrow) -> Iterator[str]:
        """An arrow across the gap, from its source cells to its destination cells, with its cargo near its tail."""
        tone, cargo = colours(arrow.chunks), self.cargo(arrow)
        start, end = self.left(arrow.round) - self.gap + 5, self.left(arrow.round) - 5
        tail, head = self.middle(arrow.source, arrow.chunks), self.middle(arrow.to, arrow.lands)
        tip, width = end - 15 if arrow.reduced else end, round(len(cargo) * CHARACTER) + 10
        right = start + 6 + width
        curve = f"M{start} {tail:g}H{right}C{right + 34} {tail:g} {tip - 40} {head:g} {tip - 5} {head:g}"
        what = "adds" if arrow.reduced else "receives"
        words = (f"round {arrow.round}: rank {arrow.to} {what} {self.schedule.cargo(arrow)} of rank {arrow.source}")
        yield f'<g class="message" stroke="{tone[1]}"><title>{escape(words, quote=False)}</title>'
        yield f'<path d="{curve}{brackets(start - 2, [self.top(arrow.source, c) for c in arrow.chunks])}"/>'
        yield f'<path d="M{tip - 7} {head - 4:g}L{tip} {head:g}L{tip - 7} {head + 4:g}z" style="fill:{tone[1]}"/>'
        yield f'<path d="{brackets(end + 2, [self.top(arrow.to, place) for place in arrow.lands])}"/>'
        if arrow.reduced:
            yield f'<circle cx="{end - 6}" cy="{head:g}" r="6" fill="{tone[2]}"/>'
            yield f'<path d="M{end - 9} {head:g}h6M{end - 6} {head - 3:g}v6"/>'
        yield rectangle(start + 6, tail - 8, width, 16, tone, radius=8)
        yield f'<text class="cargo" stroke="none" x="{start + 6 + width / 2:g}" y="{tail + 4:g}">{cargo}</text></g>'

    def cargo(self, arrow: Arrow) -> str:
        """The cargo of a message, in a few characters: the number of a chunk stands beside its cell."""
        return self.schedule.cargo(arrow).removeprefix("chunks ").removeprefix("chunk ")


def rectangle(
    x: float, y: float, width: float, height: float, tone: tuple[str, str, str], stroke: float = 1, radius: int = 3
) -> str:
    return (f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius}" '
            f'fill="{tone[2]}" stroke="{tone[1]}" stroke-width="{stroke:g}"/>')


def brackets(x: float, tops: Sequence[int]) -> str:
    """A bar beside each of several cells; a single one needs none."""
    return "".join(f"M{x:g} {top + 2}v{CELL_HEIGHT - 4}" for top in tops) if len(tops) > 1 else ""


def text(x: float, y: float, words: str, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x:g}" y="{y:g}">{escape(words, quote=False)}</text>'
