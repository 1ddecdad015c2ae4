"""Schedules and steps as objects that display themselves: drawn, printed, as data, as pages.

In the terminal a schedule is, for every round, each rank, the message that reached it, and its chunks.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.console import Console
from rich.text import Text

from zerosim.core.terms import Sum
from zerosim.core.words import plural
from zerosim.show.page.page import schedule_page, step_page
from zerosim.show.schedule import Arrow, Cell, Schedule, schedule_document
from zerosim.show.schedule_svg import MOST_CELLS, cell_count, schedule_picture
from zerosim.show.shown import Page, Picture, Shown
from zerosim.show.step import RecordedStep, show_step


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
        drawn_in_cells=cell_count(schedule) <= MOST_CELLS,
        make_page=lambda: Page(schedule_page(schedule, only or 0), f"{schedule.title} step by step"))


def shown_step(step: RecordedStep, only: int | None = None) -> Shown:
    """A step that displays itself, or `only` one event of it, counted from 1, at which a page opens.

    A row, one for each event of each rank, has `moment`, `what`, `unit`, `rank`, `sent_bytes`, `held_bytes`.
    """

    def page() -> Page:
        return Page(step_page(step), f"{step.title} step by step")

    return Shown(
        step, step.fault is None, step.verdict,
        f"<{step.title}, {step.about}: {plural(len(step.events), 'event')}; {step.verdict}>",
        show=lambda console: show_step(console, step, only), make_document=step.document,
        rows_of=lambda document: [
            {"moment": number, "what": event["what"], "unit": event["unit"], "rank": rank,
             "sent_bytes": sum(part["sent_bytes"].values()), "held_bytes": sum(part["held_bytes"].values())}
            for number, event in enumerate(document["moments"], 1) for rank, part in enumerate(event["ranks"])],
        excerpt=lambda: page().frame, make_page=page)


COLOURS = ("cyan", "magenta", "yellow", "blue", "bright_cyan", "bright_magenta", "bright_yellow", "bright_blue")
"""The colours of the chunks, in turn; green and red are reserved for the verdict."""

MOST_ROUNDS = 32
MOST_RANKS = 16

CHANGED = "›"


def show_schedule(console: Console, schedule: Schedule, only: int | None = None) -> None:
    """Print the whole schedule if it fits, in lines of all chunks or else of changed ones, and name the parts left out.

    Or print `only` one round: the chunks that arrived in it.
    """
    drawing = Drawing(schedule, console.width, only)
    for line in drawing.lines():
        for part in line.wrap(console, console.width) if line.cell_len > console.width else [line]:
            part.rstrip()
            console.print(part, soft_wrap=True)
    colour = "bold red" if schedule.faults else "bold green"
    console.print(Text(schedule.verdict, style=colour), soft_wrap=not console.is_terminal)
    if schedule.diagnosis and schedule.diagnosis.cause:
        console.print(Text(f"why: {schedule.diagnosis.cause}"), soft_wrap=not console.is_terminal)


class Drawing:
    """The lines of a schedule, `width` columns wide."""

    def __init__(self, schedule: Schedule, width: int, only: int | None = None) -> None:
        self.schedule = schedule
        self.only = only
        self.width = width
        self.ranks = range(min(schedule.size, MOST_RANKS))
        self.cargo_width = max((len(schedule.cargo(arrow)) for arrow in schedule.arrows), default=0)
        self.arrow_width = max((len(self.arrow(each)) for each in schedule.arrows), default=0)
        self.rank_width = len(f"rank {self.ranks[-1]}")
        names = [schedule.place_name(place) for place in range(schedule.chunks)]
        texts = [cell.text for rank, cell in schedule.news() if rank in self.ranks]
        self.cell_width = max(map(len, [*names, *texts]), default=0) + 3
        self.room = width - self.arrow_width - self.rank_width - 3
        self.side_by_side = schedule.chunks * self.cell_width - 1 <= self.room

    def lines(self) -> Iterator[Text]:
        schedule = self.schedule
        yield Text.assemble((schedule.title, "bold"), f": {schedule.cost}")
        if schedule.subject.algorithm is not None:
            yield Text(schedule.subject.algorithm.title)
        yield from (Text(line, style="dim") for line in packed(self.legend(), self.width))
        last = len(schedule.states) - 1
        left_out = range(MOST_ROUNDS, last) if self.only is None else range(0)
        for state in range(last + 1) if self.only is None else [self.only]:
            if state not in left_out:
                yield self.heading(state)
                for rank in self.ranks:
                    yield from (self.drawn(arrow) for arrow in self.arrived(state, rank)[:-1])
                    yield from [self.row(state, rank)] if self.side_by_side else self.news(state, rank)
            elif state == left_out[0]:
                yield Text("…")
        if words := self.left_out(left_out):
            ways = "--json FILE lists them all" + ", --svg FILE draws them" * (cell_count(schedule) <= MOST_CELLS)
            yield Text(f"left out: {words}; {ways}", style="yellow")

    def legend(self) -> list[str]:
        """The legend of the signs that occur."""
        cells = [cell for _, cell in self.schedule.news()]
        reductions = {arrow.reduced for arrow in self.schedule.arrows}
        entries = {
            "─+▶ adds": True in reductions,
            "──▶ replaces": False in reductions and self.schedule.chunks > 0,
            "2+3+0 in order of addition": any(isinstance(cell.holds, Sum) for cell in cells),
            "1…3 is 1+2+3": self.schedule.abbreviates,
            "2[1] chunk 1 of rank 2": self.schedule.subject.kind.displacing,
            f"{CHANGED} new": any(cell.since for cell in cells),
            "only what is new is shown": not self.side_by_side,
            "✓ complete": any(cell.complete for cell in cells),
            "(1) not yet in its final place": any(cell.outside for cell in cells),
            "· nothing": any(cell.text == "·" for cell in cells),
        }
        return [words for words, occurs in entries.items() if occurs]

    def heading(self, state: int) -> Text:
        gap = self.arrow_width + self.rank_width + 3
        line = Text(f"{self.schedule.heading(state):<{gap}}", style="bold")
        if self.side_by_side:
            for place in range(self.schedule.chunks):
                line.append(f" {self.schedule.place_name(place):<{self.cell_width - 1}}", style=colour(place))
        return line

    def row(self, state: int, rank: int) -> Text:
        """One rank after a round, with all its chunks."""
        line = self.arrival(state, rank)
        for cell in self.schedule.states[state][rank]:
            line.append_text(self.cell(cell, state))
        return line

    def news(self, state: int, rank: int) -> Iterator[Text]:
        """One rank after a round, with its changed chunks; nothing if none changed and no message arrived."""
        new = [cell for cell in self.schedule.states[state][rank] if cell.since == state]
        if not new and not self.arrived(state, rank):
            return
        line = self.arrival(state, rank)
        indent = len(line)
        for names, cell in self.alike(new):
            entry = Text.assemble(f" {names}: ", self.cell(cell, state))
            entry.rstrip()
            if len(line) > indent and len(line) + len(entry) > indent + self.room:
                yield line
                line = Text(" " * indent)
            line.append_text(entry).append(" ")
        yield line

    def alike(self, cells: Sequence[Cell]) -> Iterator[tuple[str, Cell]]:
        """Neighbouring cells with equal text, once, with the names of their places."""
        numbered = enumerate(cells)
        for _, same in groupby(numbered, lambda item: (item[1].text, item[1].place - item[0])):
            found = [cell for _, cell in same]
            first, last = found[0].place, found[-1].place
            yield self.schedule.place_name(first) if first == last else f"chunks {first}–{last}", found[0]

    def arrived(self, state: int, rank: int) -> list[Arrow]:
        return [arrow for arrow in self.schedule.arrows_in(state) if arrow.to == rank]

    def arrival(self, state: int, rank: int) -> Text:
        """The last message that reached a rank in a round, and the rank's name."""
        arrived = self.arrived(state, rank)
        line = self.drawn(arrived[-1]) if arrived else Text(" ")
        line.pad_right(self.arrow_width + 1 - len(line))
        line.append(f" {f'rank {rank}':<{self.rank_width}} ", style="" if arrived else "dim")
        return line

    def drawn(self, arrow: Arrow) -> Text:
        return Text.assemble(" ", (self.arrow(arrow), colour(*arrow.chunks)))

    def arrow(self, arrow: Arrow) -> str:
        source = f"{arrow.source:>{len(str(self.schedule.size - 1))}}"
        cargo = f"{self.schedule.cargo(arrow):─^{self.cargo_width}}"
        return f"{source} ─{cargo}─{'+' if arrow.reduced else '─'}▶"

    def cell(self, cell: Cell, state: int) -> Text:
        new = 0 < state == cell.since
        text = Text().append(CHANGED if new else " ", style="bold")
        text.append(cell.text.removesuffix("✓"), style=f"bold {colour(cell.place)}" if new else "")
        if cell.complete:
            text.append("✓", style="bold green")
        text.pad_right(self.cell_width - len(text))
        return text

    def left_out(self, rounds: range) -> str:
        """Words for the ranks and rounds that are left out."""
        ends = {
            "ranks": (len(self.ranks), self.schedule.size - 1),
            "rounds": (rounds.start, rounds.stop - 1),
        }
        return ", ".join(f"{what} {first}…{last}" for what, (first, last) in ends.items() if first <= last)


def packed(entries: Sequence[str], width: int) -> Iterator[str]:
    """Lines of as many entries as fit; none is broken.

    >>> list(packed(["+ adds", "> replaces", "· nothing"], width=20))
    ['+ adds   > replaces', '· nothing']
    """
    line = ""
    for entry in entries:
        if line and len(line) + 3 + len(entry) > width:
            yield line
            line = ""
        line += f"   {entry}" if line else entry
    if line:
        yield line


def colour(*chunks: int) -> str:
    """The colour of a single chunk; several together have none."""
    return COLOURS[chunks[0] % len(COLOURS)] if len(chunks) == 1 else ""
