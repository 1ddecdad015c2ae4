"""Words and columns of figures in lines as wide as the console: words wrap, cells are never broken.

Long names take several lines, and columns that do not fit are printed below.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

GAP = 2
"""The terminal columns between two columns of a table; a mark before a figure stands in the second."""

LEAST_NAME = 12
"""The least columns of a long name, if as many are left by one figure."""


@dataclass(frozen=True)
class Column:
    """A heading of one line or two and a cell for each row, flush right; the heading is on the left if `to_the_left`.
    """

    heading: str
    cells: Sequence[str | Text]
    to_the_left: bool = False

    @property
    def width(self) -> int:
        return max(cell_len(str(words)) for words in [*self.heading.split("\n"), *self.cells])


def show_words(console: Console, words: str | Text, *, key: str = "", style: str = "", most: int = 10_000) -> None:
    """Print `words` wrapped, in `most` columns or fewer; a `key` before them has columns of its own."""
    first = cell_len(key)
    room = max(1, min(console.width, most) - first)
    for number, line in enumerate(Text("", style=style).append(words).wrap(console, room)):
        line.rstrip()
        console.print(Text.assemble((key if not number else " " * first, style), line), soft_wrap=True)


def show_grid(console: Console, names: Sequence[str], columns: Sequence[Column], corner: str = "") -> None:
    """Print a line for each row, or more if its name is long; columns beyond the width are printed below.

    `corner` is the heading of the names.
    """
    while columns:
        count = max(1, fitting([corner, *names], columns, console.width))
        for line in grid(console, names, columns[:count], corner):
            line.rstrip()
            console.print(line, soft_wrap=True)
        columns = columns[count:]


def fitting(names: Sequence[str], columns: Sequence[Column], width: int) -> int:
    """The number of first columns that leave enough width for names.

    >>> fitting(["DDP"], [Column("sent", ["2"]), Column("kept", ["16"])], width=12)
    1
    """
    room = width - min(LEAST_NAME, longest(names))
    return next((count for count in range(len(columns)) if width_of(columns[: count + 1]) > room), len(columns))


def width_of(columns: Sequence[Column]) -> int:
    """The terminal columns that these columns need, gaps included."""
    return sum(GAP + column.width for column in columns)


def longest(names: Sequence[str]) -> int:
    return max(map(cell_len, names), default=0)


def grid(console: Console, names: Sequence[str], columns: Sequence[Column], corner: str) -> Iterator[Text]:
    """The lines: headings, then each row."""
    room = max(1, console.width - width_of(columns))
    first = min(room, longest([corner, *names]))
    yield from headings(f"{corner:<{first}}", columns)
    for number, name in enumerate(names):
        lines = Text(shortened_words(name, first)).wrap(console, first)
        line = lines[0] if lines else Text()
        line.rstrip()
        line.pad_right(first - line.cell_len)
        for column in columns:
            line.append_text(right(column.cells[number], GAP + column.width))
        yield line
        for rest in lines[1:]:
            rest.rstrip()
            yield rest


def headings(corner: str, columns: Sequence[Column]) -> Iterator[Text]:
    upper, lower = Text(" " * len(corner), style="bold"), Text(corner, style="bold")
    for column in columns:
        *above, below = column.heading.split("\n")
        for line, words in ((upper, "".join(above)), (lower, below)):
            padded = f"{words:<{column.width}}" if column.to_the_left else words
            line.append_text(right(padded, GAP + column.width))
    yield from (line for line in (upper, lower) if line.plain.strip())


def right(words: str | Text, width: int) -> Text:
    cell = words.copy() if isinstance(words, Text) else Text(words)
    cell.pad_left(width - cell.cell_len)
    return cell


def shortened_words(name: str, width: int) -> str:
    """`name` with its longest words cut in the middle, so that both ends remain.

    >>> shortened_words("stage by reduce_scatter_then_all_gather", 16)
    'stage by reduce_s…_gather'
    """

    end = max(0, (width - 2) // 2)

    def shortened(found: re.Match[str]) -> str:
        word = found[0]
        return f"{word[: width - 1 - end]}…{word[len(word) - end :]}"

    return re.sub(rf"\S{{{width + 1},}}", shortened, name)
