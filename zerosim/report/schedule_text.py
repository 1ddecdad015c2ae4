"""A schedule in the terminal: below every round each rank, what has just reached it, and what it now holds."""

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from zerosim.report.schedule import Arrow, Cell, Schedule
from zerosim.report.schedule_svg import MOST_CELLS, cell_count
from zerosim.terms import Sum

COLOURS = ("cyan", "magenta", "yellow", "blue", "bright_cyan", "bright_magenta", "bright_yellow", "bright_blue")
"""Of the chunks, in turn; green and red are kept for the verdict."""

MOST_ROUNDS = 16
MOST_RANKS = 12

CHANGED = "›"


def show_schedule(console: Console, schedule: Schedule) -> None:
    """Everything where it fits; else as many chunks, ranks and rounds as do, and what was left out."""
    drawing = Drawing(schedule, console.width)
    for line in drawing.lines():
        line.rstrip()
        console.print(line, soft_wrap=True, highlight=False)
    colour = "bold red" if schedule.faults else "bold green"
    console.print(Text(schedule.verdict, style=colour), soft_wrap=True)


class Drawing:
    """The lines of a schedule, `width` columns wide."""

    def __init__(self, schedule: Schedule, width: int) -> None:
        self.schedule = schedule
        self.ranks = range(min(schedule.size, MOST_RANKS))
        self.cargo_width = max((len(schedule.cargo(arrow)) for arrow in schedule.arrows), default=0)
        self.arrow_width = max((len(self.arrow(each)) for each in schedule.arrows), default=0)
        self.rank_width = len(f"rank {self.ranks[-1]}")
        names = [schedule.place_name(place) for place in range(schedule.chunks)]
        texts = [cell.text for rank, cell in schedule.news() if rank in self.ranks]
        self.cell_width = max(map(len, [*names, *texts]), default=0) + 3
        room = width - self.arrow_width - self.rank_width - 3
        self.chunks = range(min(schedule.chunks, max(1, room // max(1, self.cell_width))))

    def lines(self) -> Iterator[Text]:
        schedule = self.schedule
        yield Text.assemble((schedule.title, "bold"), f": {schedule.cost}")
        if schedule.subject.algorithm is not None:
            yield Text(schedule.subject.algorithm.title)
        if legend := self.legend():
            yield Text(legend, style="dim")
        last = len(schedule.states) - 1
        left_out = range(MOST_ROUNDS, last)
        for state in range(last + 1):
            if state not in left_out:
                yield self.heading(state)
                yield from (self.row(state, rank) for rank in self.ranks)
            elif state == left_out[0]:
                yield Text("…")
        if words := self.left_out(left_out):
            ways = "--json FILE lists them all" + ", --svg FILE draws them" * (cell_count(schedule) <= MOST_CELLS)
            yield Text(f"left out: {words}; {ways}", style="yellow")

    def legend(self) -> str:
        """What the signs mean that occur."""
        cells = [cell for _, cell in self.schedule.news()]
        reductions = {arrow.reduced for arrow in self.schedule.arrows}
        entries = {
            "─+▶ adds": True in reductions,
            "──▶ replaces": False in reductions and self.schedule.chunks > 0,
            "2+3+0 in order of addition": any(isinstance(cell.holds, Sum) for cell in cells),
            "2[1] chunk 1 of rank 2": self.schedule.subject.kind.displacing,
            f"{CHANGED} new": any(cell.since for cell in cells),
            "✓ complete": any(cell.complete for cell in cells),
            "(1) not yet in its place": any(cell.outside for cell in cells),
            "· nothing": any(cell.text == "·" for cell in cells),
        }
        return "   ".join(words for words, occurs in entries.items() if occurs)

    def heading(self, state: int) -> Text:
        gap = self.arrow_width + self.rank_width + 3
        line = Text(f"{self.schedule.heading(state):<{gap}}", style="bold")
        for place in self.chunks:
            line.append(f" {self.schedule.place_name(place):<{self.cell_width - 1}}", style=colour(place))
        return line

    def row(self, state: int, rank: int) -> Text:
        """One rank after a round."""
        arrived = [arrow for arrow in self.schedule.arrows_in(state) if arrow.to == rank]
        line = Text(" ")
        if arrived:
            line.append(self.arrow(arrived[0]), style=colour(*arrived[0].chunks))
        line.pad_right(self.arrow_width + 1 - len(line))
        line.append(f" {f'rank {rank}':<{self.rank_width}} ", style="" if arrived else "dim")
        for place in self.chunks:
            line.append_text(self.cell(self.schedule.states[state][rank][place], state))
        return line

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
        """Which ranks, chunks and rounds there is no room for, in words."""
        ends = {
            "ranks": (len(self.ranks), self.schedule.size - 1),
            "chunks": (len(self.chunks), self.schedule.chunks - 1),
            "rounds": (rounds.start, rounds.stop - 1),
        }
        return ", ".join(f"{what} {first}…{last}" for what, (first, last) in ends.items() if first <= last)


def colour(*chunks: int) -> str:
    """The colour of a single chunk; several together have none."""
    return COLOURS[chunks[0] % len(COLOURS)] if len(chunks) == 1 else ""
