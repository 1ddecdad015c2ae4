"""A film as a picture, without a browser; a schedule in the terminal, as a picture and as a page."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from textwrap import wrap

from rich.console import Console
from rich.text import Text

from zerosim.core.errors import UsageError
from zerosim.core.words import printable
from zerosim.proofs.schedule import Schedule, chunks_of
from zerosim.show.film import COLOURS, FILLS, Cell, Frame, Panel, film, longest, numbers, of_schedule
from zerosim.show.grid import Column, show_grid, show_words
from zerosim.show.page import Head, html
from zerosim.show.shown import Page, Picture, Shown

MOST_CELLS = 8_000
"""The most cells in a picture; a page has as many as there are."""
RED = "#c8102e"
KEYS = "← and → step, with Shift to the next event, Home and End, space plays"
LEGEND = ("2+3+0: ranks in order of addition; 1…3: 1+2+3; 2[1]: chunk 1 of rank 2",
          "⊕ adds what arrives; ✓ complete; (1): not yet in its final place")
HEIGHT, CHARACTER, GAP = 20, 8, 12
"""Pixels: the height of a cell, the width of a character in it, and the space between ranks."""


@dataclass(frozen=True, repr=False)
class Filmed(Shown):
    """A recorded run that displays itself, or several: the page steps through its frames, the picture has them all."""

    head: Head = field(kw_only=True)
    legend: Sequence[str] = field(kw_only=True)
    """What cells mean."""
    make_panels: Callable[[], Sequence[Panel]] = field(kw_only=True)
    only: int | None = None
    """The only frame of the picture, at which the page opens."""

    def picture(self) -> Picture:
        """`UsageError` of several runs beside each other, and of too many cells."""
        panel, *others = self.make_panels()
        if others:
            return super().picture()
        return Picture(strip(panel, [self.head.caption, *self.legend, *self.head.verdict], self.only), self.head.title)

    def page(self) -> Page:
        panels, title = self.make_panels(), self.head.title
        small = ["3/4: so many, in small cells"] * bool(panels[0].whole)
        block = {"film": film(panels, self.only or 0), "about": f"{title}, step by step",
                 "legend": f"{KEYS}. {'; '.join([*self.legend, *small])}", "numbers": [*map(numbers, panels)]}
        return Page(html(self.head, [("film", "Step by step", [block])]), f"{title} step by step")


def shown_schedule(schedule: Schedule, only: int | None = None) -> Shown:
    """A schedule that displays itself, or `only` one round of it, at which a page opens.

    A row, one for each message, has `round`, `source`, `to`, `chunks`, `reduced`.
    """
    why = [f"why: {schedule.cause}"] * bool(schedule.cause)
    head = Head(schedule.title, [*schedule.verdict.split("; "), *why], not schedule.proof.faults, schedule.about)
    return Filmed(
        schedule, head.passed, schedule.verdict,
        f"<{schedule.title}: {schedule.about.partition('; ')[0]}; {schedule.verdict}>",
        show=lambda console: show_schedule(console, schedule, only),
        make_document=schedule.document, rows_of=lambda document: list(document["messages"]),
        head=head, legend=LEGEND, make_panels=lambda: [of_schedule(schedule)], only=only)


def show_schedule(console: Console, schedule: Schedule, only: int | None = None) -> None:
    """Print a schedule, a line for each rank in each round, or `only` one round."""
    show_words(console, Text.assemble((schedule.title, "bold"), f": {schedule.about}"))
    show_words(console, "; ".join([*LEGEND, "› new"]), style="dim")
    for state in range(len(schedule.states)) if only is None else [only]:
        arrived = [Text("\n").join(
            Text(f"{sent.source} ─{schedule.place_name(*chunks)}─{'⊕' if sent.reduced else '─'}▶",
                 COLOURS[chunks[0] % len(COLOURS)] if len(chunks) == 1 else "")
            for sent in schedule.messages if (sent.round, sent.to) == (state, rank)
            for chunks in [chunks_of(sent.carried)]) for rank in range(schedule.size)]
        cells = [[Text.assemble(("› ", "bold"), (cell.text, f"bold {COLOURS[cell.place % len(COLOURS)]}"))
                  if 0 < cell.since == state else Text(f"  {cell.text}") for cell in vector]
                 for vector in schedule.states[state]]
        show_grid(console, [f"rank {rank}" for rank in range(schedule.size)], [
            *[Column("arrives", arrived)] * any(arrived),
            *(Column(schedule.place_name(place), column, to_the_left=True)
              for place, column in enumerate(zip(*cells, strict=True)))], schedule.heading(state))
    style = "bold red" if schedule.proof.faults else "bold green"
    console.print(Text(schedule.verdict, style=style), soft_wrap=not console.is_terminal)
    if schedule.cause:
        console.print(Text(f"why: {schedule.cause}"), soft_wrap=not console.is_terminal)


@dataclass
class Sheet:
    """The shapes and the words of a picture by their looks, each of which is written once; frames of `panel` begin with
    names, `left` pixels wide, and have cells of `width` pixels.
    """

    panel: Panel
    left: int
    width: int
    scale: Mapping[str, int]
    """The length of the longest bar of each name."""
    shapes: defaultdict[str, str] = field(default_factory=lambda: defaultdict(str))
    words: defaultdict[str, str] = field(default_factory=lambda: defaultdict(str))

    def box(self, x: int, y: int, width: int, looks: str) -> None:
        self.shapes[looks] += f"M{x} {y}h{width}v{HEIGHT - 2}h-{width}z"

    def text(self, x: int, y: int, line: str, looks: str = "") -> None:
        self.words[looks] += f'<text x="{x}" y="{y}">{escape(printable(line))}</text>'

    def cell(self, cell: Cell, x: int, y: int) -> None:
        """The stripes of its contributions, of the whole sum, a border of what is new, red what is wrong."""
        tone, looks = RED if "wrong" in cell.looks else cell.tone, {*cell.looks}
        width, whole = self.width, self.panel.whole
        striped = cell.parts is not None and 0 < len({*cell.parts}) < whole
        self.box(x, y, width - 2, f'fill="{tone}{"00" if "blank" in looks else "20" if striped else "80"}"')
        for part in cell.parts or () if striped else ():
            left, right = (number * width // whole for number in (part, part + 1))
            self.box(x + left, y, right - left, f'fill="{tone}80"')
        if {"new", "blank", "outside", "wrong"} & looks:
            dashes = ' stroke-dasharray="3"' * bool({"blank", "outside"} & looks)
            self.box(x, y, width - 2, f'fill="none" stroke="{tone}" stroke-width="2"{dashes}')
        size = min(12, round(1.6 * (width - 2) / max(len(cell.text), 1)))
        self.text(x + width // 2 - 1, y + 13, cell.text,
                  f'text-anchor="middle" font-family="monospace" font-size="{size}"')

    def frame(self, frame: Frame, x0: int, y0: int, names: Sequence[str]) -> None:
        """A frame: the names of its rows and bars, the cells and bars of each rank, and its arrows."""
        across, rows, width = self.panel.across, len(self.panel.rows), self.width

        def corner(rank: int, line: int, place: int = 0) -> tuple[int, int]:
            return x0 + self.left + rank * (width * across + GAP) + place * width, y0 + (line + 1) * HEIGHT + 10

        self.text(x0 + 10, y0, frame.words, 'font-weight="bold"')
        for row, name in enumerate(names):
            self.text(x0 + self.left - 6, corner(0, row)[1] + 13, name, 'text-anchor="end"')
        for rank, of_rank in enumerate(frame.cells):
            x, y = corner(rank, 0)
            self.text(x + width * across // 2, y - 4, f"{'rank ' * (width * across + GAP > 60)}{rank}",
                      'text-anchor="middle"')
            for row in range(rows):
                self.box(*corner(rank, row), width * across, 'fill="#8882"')
            for place, cell in enumerate(of_rank):
                if cell is not None:
                    self.cell(cell, *corner(rank, *divmod(place, across)))
            for row, (name, figure, parts) in enumerate(frame.bars[rank], rows):
                x, y = corner(rank, row)
                for kind, length in parts:
                    long = round(width * across * length / self.scale[name])
                    self.box(x, y, long, f'fill="{FILLS[kind]}"')
                    x += long
                self.text(corner(rank, row, across)[0] - 3, y + 13, figure, 'text-anchor="end" font-size="11"')
        for source, outgoing, to, into, added, carried in frame.moves:
            (x1, y1), (x2, y2) = corner(source, *divmod(outgoing, across)), corner(to, *divmod(into, across))
            side, tone = 1 if x1 < x2 else -1, carried.tone if carried else "#1c1c1c"
            x1, x2 = x1 + (width + side * width) // 2, x2 + (width - side * width) // 2
            self.shapes[f'fill="none" stroke="{tone}"'] += (
                f"M{x1} {y1 + 9}Q{(x1 + x2) // 2} {(y1 + y2) // 2 - abs(x2 - x1) // 9} {x2} {y2 + 9}"
                f"m{-6 * side}-5l{6 * side} 5l{-7 * side} 3")
            if added:
                self.text(x2, y2 + 3, "⊕", f'text-anchor="middle" font-weight="bold" fill="{tone}"')

    def svg(self, width: int, height: int) -> str:
        """The picture on white, borders and arrows above grounds."""
        paths = sorted(self.shapes.items(), key=lambda shape: "none" in shape[0])
        drawn = [*(f'<path {looks} d="{path}"/>' for looks, path in paths),
                 *(f"<g {looks}>{line}</g>" for looks, line in self.words.items())]
        return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
                f'viewBox="0 0 {width} {height}" fill="#1c1c1c" style="font: 12px system-ui, sans-serif">'
                f'<rect width="{width}" height="{height}" fill="white"/>{"".join(drawn)}</svg>')


def strip(panel: Panel, lines: Sequence[str], only: int | None = None) -> str:
    """The SVG of a run as its page draws it, with some `lines` above: the last frame of each event, or frame `only`,
    from left to right and from top to bottom. `UsageError` if there are too many cells.
    """
    frames = [frame for frame, after in pairwise([*panel.frames, None]) if frame and (after is None or after.begins)]
    frames = frames if only is None else [panel.frames[only]]
    ranks, rows, across = len(frames[0].cells), len(panel.rows), panel.across
    if (cells := len(frames) * ranks * rows * across) > MOST_CELLS:
        raise UsageError(
            f"a picture of {panel.title} would have {cells:,} cells, at most {MOST_CELLS:,} are drawn: "
            "give fewer --ranks, a --round of a collective, --html for a page, or --json for the same as data")
    names = [f"{group} {name}".strip() for group, name in panel.rows] + [name for name, _, _ in frames[0].bars[0]]
    letters = [len(cell.text) for frame in frames for of_rank in frame.cells for cell in of_rank if cell]
    width = 30 if across > 1 else max(CHARACTER * max(letters, default=1) + 8, 64)
    sheet = Sheet(panel, CHARACTER * max(map(len, names)) + 10, width, longest([panel]))
    wide, tall = sheet.left + ranks * (width * across + GAP) + 16, (len(names) + 2) * HEIGHT + 26
    abreast = min(len(frames), max(1, (960 if across == 1 else 1400) // wide))
    whole = max(abreast * wide, 420)
    lines = [part for line in lines for part in wrap(line, whole // 7)]
    top = 30 + 15 * len(lines)
    sheet.text(10, 18, panel.title, 'font-weight="bold" font-size="13"')
    for number, line in enumerate(lines):
        sheet.text(10, 35 + 15 * number, line)
    for number, frame in enumerate(frames):
        sheet.frame(frame, number % abreast * wide, top + number // abreast * tall + 14, names)
    return sheet.svg(whole, top + -(-len(frames) // abreast) * tall)
