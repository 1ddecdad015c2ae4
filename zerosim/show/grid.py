"""Words, bars, and columns of figures in lines as wide as the console: words wrap, cells are never broken."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

GAP = 2
"""The terminal columns between two columns of a table."""
LEAST_NAME = 12
"""The least columns of a long name, which takes several lines; its words are whole up to half of the width."""

SHADES = {"parameters": ("█", "blue"), "gradients": ("▓", "yellow"), "optimizer": ("░", "green"), "sent": ("━", "cyan")}
"""The sign and the colour of each part of a bar; without colour its sign identifies it."""


@dataclass(frozen=True)
class Column:
    """A heading of one line or two and a cell for each row, flush right or `to_the_left`."""

    heading: str
    cells: Sequence[str | Text]
    to_the_left: bool = False


def show_words(console: Console, words: str | Text, *, key: str = "", style: str = "") -> None:
    """Print `words` wrapped; a `key` before them has columns of its own."""
    first = cell_len(key)
    room = max(1, console.width - first)
    for number, line in enumerate(Text("", style=style).append(words).wrap(console, room)):
        line.rstrip()
        console.print(Text.assemble((key if not number else " " * first, style), line), soft_wrap=True)


def show_grid(console: Console, names: Sequence[str], columns: Sequence[Column], corner: str = "") -> None:
    """Print a line for each row, or more if its name is long; columns beyond the width are printed below.

    `corner` is the heading of the names.
    """
    while columns:
        fitting = (count for count in range(len(columns), 0, -1) if fits(console, [corner, *names], columns[:count]))
        count = next(fitting, 1)
        table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
        table.add_column(Text(corner), overflow="fold")
        for column in columns[:count]:
            table.add_column(Text(column.heading), no_wrap=True, justify="left" if column.to_the_left else "right")
        for number, name in enumerate(names):
            table.add_row(Text(name), *(Text.assemble(column.cells[number]) for column in columns[:count]))
        for segments in console.render_lines(table, pad=False):
            line = Text.assemble(*((segment.text, segment.style or "") for segment in segments))
            line.rstrip()
            console.print(line, soft_wrap=True)
        columns = columns[count:]


def fits(console: Console, names: Sequence[str], columns: Sequence[Column]) -> bool:
    """Whether these columns leave enough of the width for names."""
    widths = [max(cell_len(line) for cell in (column.heading, *column.cells) for line in str(cell).split("\n"))
              for column in columns]
    word = max(map(cell_len, " ".join(names).split()), default=0)
    least = max(min(LEAST_NAME, max(map(cell_len, names), default=0)), min(word, console.width // 2))
    return least + sum(GAP + width for width in widths) <= console.width


def bar(parts: Mapping[str, int | Fraction], whole: int | Fraction, room: int) -> Text:
    """One bar of parts, by the keys of `SHADES`; `whole` fills all of the room, and equal counts are equally long.

    A positive count has at least a column; the longest is shortened if the sum would be longer than the room.

    >>> bar({"parameters": 1, "gradients": 1, "optimizer": 2}, whole=56, room=56).plain
    '█▓░░'
    >>> bar({"parameters": 70, "gradients": 1, "optimizer": 1}, whole=72, room=8).plain, bar({"sent": 0}, 1, 9).plain
    ('██████▓░', '')
    """
    lengths = {kind: max(round(count * room / max(whole, 1)), int(count > 0)) for kind, count in parts.items()}
    longest = max(lengths, key=lambda kind: lengths[kind])
    lengths[longest] -= max(sum(lengths.values()) - room, 0)
    return Text.assemble(*((SHADES[kind][0] * length, SHADES[kind][1]) for kind, length in lengths.items()))
