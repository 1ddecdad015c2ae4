"""A schedule drawn: rounds one after the other, in the terminal as text, and as a picture of its film's frames."""

from html import escape
from textwrap import wrap

from rich.console import Console
from rich.text import Text

from zerosim.core.errors import UsageError
from zerosim.core.words import printable
from zerosim.proofs.schedule import Schedule, chunks_of
from zerosim.show.film import film_page, of_schedule
from zerosim.show.grid import Column, show_grid, show_words
from zerosim.show.page import Head
from zerosim.show.shown import Page, Picture, Shown

MOST_CELLS = 5_000
"""The most cells in the picture of a schedule; a page has as many as there are."""
COLOURS = ("#2a7fc0", "#d2601a", "#1f9470", "#a8509b", "#a88200", "#d0433f", "#1594a8", "#8c6d46")
"""The colours of the chunks, in turn, as in `film.js`."""
RED = "#c8102e"
LEGEND = ("2+3+0: ranks in order of addition; 1…3: 1+2+3; 2[1]: chunk 1 of rank 2",
          "⊕ adds what arrives; ✓ complete; (1): not yet in its final place")
HEIGHT, CHARACTER, GAP = 18, 8, 80
"""Pixels: the height of a cell, the width of a character in it, and the space between two rounds."""


def shown_schedule(schedule: Schedule, only: int | None = None) -> Shown:
    """A schedule that displays itself, or `only` one round of it, at which a page opens.

    A row, one for each message, has `round`, `source`, `to`, `chunks`, `reduced`.
    """
    return Shown(
        schedule, not schedule.proof.faults, schedule.verdict,
        f"<{schedule.title}: {schedule.about.partition('; ')[0]}; {schedule.verdict}>",
        show=lambda console: show_schedule(console, schedule, only),
        make_document=schedule.document, rows_of=lambda document: list(document["messages"]),
        draw=lambda: Picture(schedule_picture(schedule, only), schedule.title),
        make_page=lambda: schedule_page(schedule, only or 0))


def schedule_page(schedule: Schedule, first: int = 0) -> Page:
    """The page of one collective, which opens at round `first`."""
    head = Head(schedule.title, [*schedule.verdict.split("; "), *[f"why: {schedule.cause}"] * bool(schedule.cause)],
                not schedule.proof.faults, schedule.about)
    return film_page(head, [of_schedule(schedule)], "; ".join(LEGEND), first)


def show_schedule(console: Console, schedule: Schedule, only: int | None = None) -> None:
    """Print a schedule, a line for each rank in each round, or `only` one round."""
    show_words(console, Text.assemble((schedule.title, "bold"), f": {schedule.about}"))
    show_words(console, "; ".join([*LEGEND, "› new"]), style="dim")
    for state, vectors in enumerate(schedule.states):
        if only not in (None, state):
            continue
        arrived = [Text("\n").join(
            Text(f"{sent.source} ─{schedule.place_name(*chunks)}─{'⊕' if sent.reduced else '─'}▶",
                 colour(chunks[0]) if len(chunks) == 1 else "")
            for sent in schedule.messages if (sent.round, sent.to) == (state, rank)
            for chunks in [chunks_of(sent.carried)]) for rank in range(schedule.size)]
        cells = [[Text.assemble(("› ", "bold"), (cell.text, f"bold {colour(cell.place)}"))
                  if 0 < cell.since == state else Text(f"  {cell.text}") for cell in vector] for vector in vectors]
        show_grid(console, [f"rank {rank}" for rank in range(schedule.size)], [
            *[Column("arrives", arrived)] * any(arrived),
            *(Column(schedule.place_name(place), column, to_the_left=True)
              for place, column in enumerate(zip(*cells, strict=True)))], schedule.heading(state))
    style = "bold red" if schedule.proof.faults else "bold green"
    console.print(Text(schedule.verdict, style=style), soft_wrap=not console.is_terminal)
    if schedule.cause:
        console.print(Text(f"why: {schedule.cause}"), soft_wrap=not console.is_terminal)


def colour(place: int) -> str:
    return COLOURS[place % len(COLOURS)]


def schedule_picture(schedule: Schedule, only: int | None = None) -> str:
    """The SVG of a schedule, with its legend and its verdict; `UsageError` if it has too many cells.

    It has a row for each place of each rank, a column for each state (for `only` one and the state before), and between
    columns what moves.
    """
    panel, lane = of_schedule(schedule), max(schedule.chunks, 1) + 1
    states = [*range(len(panel.frames))] if only is None else [*range(max(only - 1, 0), only + 1)]
    cells = len(states) * schedule.size * schedule.chunks
    if cells > MOST_CELLS:
        raise UsageError(
            f"a picture of {schedule.title} would have {cells:,} cells, at most {MOST_CELLS:,} are drawn: "
            "give fewer --ranks, a --round, --html for a page, or --json for the same as data")
    texts = [cell.text for frame in panel.frames for of_rank in frame.cells for cell in of_rank if cell]
    width = CHARACTER * max(map(len, texts), default=1) + 12
    left = 88
    wide = max(left + len(states) * (width + GAP) - GAP + 10, 320)
    lines = [part for line in (schedule.about, *LEGEND, *schedule.verdict.split("; "))
             for part in wrap(line, wide // 7)]
    top = 20 + 15 * len(lines) + 26
    drawn = [svg_text(10, 18, schedule.title, "bold 13px"),
             *(svg_text(10, 35 + 15 * number, line) for number, line in enumerate(lines))]

    def corner(column: int, rank: int, place: int) -> tuple[int, int]:
        return left + column * (width + GAP), top + (rank * lane + place) * HEIGHT

    for rank in range(schedule.size):
        for place in range(lane - 1):
            name = f"rank {rank}" * (not place) + f"\u2003{place}" * (schedule.chunks > 1)
            drawn.append(svg_text(left - 8, corner(0, rank, place)[1] + 13, name, anchor="end"))
    for column, state in enumerate(states):
        frame = panel.frames[state]
        drawn.append(svg_text(corner(column, 0, 0)[0] + width // 2, top - 8, schedule.heading(state), anchor="middle"))
        for source, outgoing, to, into, added, carried in frame.moves if column else ():
            (x1, y1), (x2, y2) = corner(column - 1, source, outgoing), corner(column, to, into)
            tone = colour(carried.colour if carried else outgoing)
            y1, y2 = y1 + HEIGHT // 2, y2 + HEIGHT // 2
            drawn.append(f'<path d="M{x1 + width} {y1}L{x2 - 2} {y2}m-8-5l8 5-8 5" fill="none" stroke="{tone}"/>')
            if added:
                drawn.append(svg_text(x2 - 20, y2 + 4, "⊕", "bold 13px", tone, "middle"))
        for rank, of_rank in enumerate(frame.cells):
            for place, cell in enumerate(of_rank):
                if cell is None:
                    continue
                x, y = corner(column, rank, place)
                tone = RED if "wrong" in cell.looks else colour(cell.colour)
                drawn.append(f'<rect x="{x}" y="{y}" width="{width}" height="{HEIGHT - 1}" fill="{tone}" fill-opacity='
                             f'".2" stroke="{tone}" stroke-width="{2 * bool({"new", "wrong"} & {*cell.looks})}"/>')
                drawn.append(svg_text(x + width // 2, y + 13, cell.text, "12px", anchor="middle", family="monospace"))
    high = corner(0, schedule.size, 0)[1] + 4
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high}" viewBox="0 0 {wide} {high}">'
            f'<rect width="{wide}" height="{high}" fill="white"/>{"".join(drawn)}</svg>')


def svg_text(
    x: int, y: int, words: str, font: str = "12px", tone: str = "#1c1c1c", anchor: str = "start",
    family: str = "system-ui, sans-serif",
) -> str:
    return (f'<text x="{x}" y="{y}" style="font:{font} {family}" fill="{tone}" text-anchor="{anchor}">'
            f"{escape(printable(words))}</text>")
