"""The memory of model states on the terminal: a table of bytes, and bars of shares of DDP."""

from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import NamedTuple

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table as Grid

from zerosim.plan.estimate import Estimate, Row
from zerosim.plan.memory import ModelStates
from zerosim.plan.published import Table
from zerosim.stages import STAGES


class Kind(NamedTuple):
    """How one kind of model state is drawn: without colour its shade tells it apart."""

    name: str
    shade: str
    colour: str


KINDS = (
    Kind("parameters", "█", "blue"),
    Kind("gradients", "▓", "yellow"),
    Kind("optimizer", "░", "green"),
)
PAGE_COLUMNS = 80
BAR_COLUMNS = 56


class Unit(NamedTuple):
    """A unit and its binary sister, for tables whose largest figure is `least` bytes or more."""

    least: int
    name: str
    size: int
    binary_name: str
    binary_size: int
    legend: str


UNITS = (
    Unit(10**14, "TB", 10**12, "TiB", 2**40, "TB = 10^12 bytes, TiB = 2^40 bytes."),
    Unit(10**9, "GB", 10**9, "GiB", 2**30, "GB = 10^9 bytes, GiB = 2^30 bytes."),
    Unit(10**6, "MB", 10**6, "MiB", 2**20, "MB = 10^6 bytes, MiB = 2^20 bytes."),
    Unit(0, "kB", 10**3, "KiB", 2**10, "kB = 10^3 bytes, KiB = 2^10 bytes."),
)


def show_estimate(console: Console, estimate: Estimate) -> None:
    """A row a stage in bytes, then a bar a stage in shares of DDP."""
    ranks = "1 rank" if estimate.ranks == 1 else f"each of {estimate.ranks:,} ranks"
    unit = next(unit for unit in UNITS if largest(estimate.rows) >= unit.least)
    show_page(
        console,
        f"Model states of {estimate.parameters:,} parameters on {ranks}",
        [estimate.basis, "", bytes_table(estimate.rows, unit), "", bars(estimate)],
        [unit.legend, *estimate.notes],
    )


def show_published(console: Console, table: Table) -> None:
    """A published table, and how its authors rounded it."""
    show_page(console, table.title, [grid(table.columns, table.rows)], [table.note])


def show_page(
    console: Console, title: str, body: Sequence[RenderableType], notes: Sequence[str]
) -> None:
    """Title, body and notes, in lines that read well on the widest terminal."""
    page = Group(f"[bold]{title}[/]", "", *body, "", *notes)
    console.print(Padding(page, 1), width=min(console.width, PAGE_COLUMNS), highlight=False)


def bytes_table(rows: Sequence[Row], unit: Unit) -> Grid:
    """Each kind and the sum in `unit`, the sum in its binary sister, and the formula of the sum."""

    def cells(row: Row) -> list[str]:
        kinds = [getattr(row.states, kind.name) for kind in KINDS]
        figures = [held / unit.size for held in (*kinds, row.states.total)]
        binary = row.states.total / unit.binary_size
        return [STAGES[row.stage].title, *map(two_decimals, [*figures, binary]), row.formula]

    kinds = [f"{kind.name}\n{unit.name}" for kind in KINDS]
    columns = ["", *kinds, f"sum\n{unit.name}", f"sum\n{unit.binary_name}", "sum\nin bytes"]
    return grid(columns, [cells(row) for row in rows])


def bars(estimate: Estimate) -> Grid:
    """Each stage's kinds end to end and its share of DDP, and a legend of the kinds."""
    whole = max(estimate.ddp_bytes, largest(estimate.rows))

    def cells(row: Row) -> tuple[str, str, str]:
        share = row.states.total / estimate.ddp_bytes
        return STAGES[row.stage].title, bar(row.states, whole), percent(share)

    legend = "   ".join(f"[{kind.colour}]{kind.shade}[/] {kind.name}" for kind in KINDS)
    return grid(("", legend, "of DDP"), [cells(row) for row in estimate.rows], left=2)


def grid(columns: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> Grid:
    """The first `left` columns flush left, the others flush right."""
    drawn = Grid(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="")
    for index, column in enumerate(columns):
        drawn.add_column(column, justify="left" if index < left else "right")
    for row in rows:
        drawn.add_row(*row)
    return drawn


def bar(states: ModelStates, whole: Fraction) -> str:
    """`whole` bytes fill all columns. Ends are rounded, not lengths: rounding does not add up.

    >>> bar(ModelStates(Fraction(1), Fraction(1), Fraction(2)), whole=Fraction(56))
    '[blue]█[/][yellow]▓[/][green]░░[/]'
    """
    held = [getattr(states, kind.name) for kind in KINDS]
    ends = [round(end * BAR_COLUMNS / whole) for end in accumulate(held, initial=Fraction(0))]
    return "".join(
        f"[{kind.colour}]{kind.shade * (stop - start)}[/]"
        for kind, (start, stop) in zip(KINDS, pairwise(ends), strict=True)
    )


def largest(rows: Sequence[Row]) -> Fraction:
    """The largest sum, in bytes."""
    return max(row.states.total for row in rows)


def two_decimals(value: Fraction) -> str:
    """`value`, rounded; what would round to nothing is not shown as nothing.

    >>> two_decimals(Fraction("31.40625")), two_decimals(Fraction(1, 1000))
    ('31.41', '<0.01')
    """
    return "<0.01" if 0 < value < Fraction(1, 200) else f"{float(value):.2f}"


def percent(share: Fraction) -> str:
    """A share of 1 in percent, to a tenth.

    >>> percent(Fraction(1)), percent(Fraction(1, 64)), percent(Fraction(1, 10_000))
    ('100.0%', '1.6%', '<0.1%')
    """
    return "<0.1%" if share < Fraction(1, 2000) else f"{float(100 * share):.1f}%"
