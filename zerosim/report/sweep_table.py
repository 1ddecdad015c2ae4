"""A sweep as a table: a row for each stage and each value of the other keys, a column for each value of one key."""

from collections.abc import Sequence

from rich.console import Console

from zerosim.planner.planned_row import PlannedRow
from zerosim.planner.planning import Plan
from zerosim.report.grid import Column, show_grid, show_words


def show_sweep(console: Console, plan: Plan, data: str) -> None:
    """Show the speed of all rows of a sweep side by side, in `data` per second; nothing without a sweep."""
    swept = [row for row in plan.rows if row.swept]
    if not swept:
        return
    key = column_key(swept)
    headings = list(dict.fromkeys(heading(row, key) for row in swept))
    names = list(dict.fromkeys(label(row, key) for row in swept))
    cells = {(label(row, key), heading(row, key)): cell(row, best=row is plan.best) for row in swept}
    meaning = f"{data}/s on each device by {key}; * is the best that fits, + what is too much, in GB"
    show_words(console, meaning, style="dim")
    show_grid(console, names, [
        Column(said, [cells.get((name, said), "") for name in names]) for said in headings])


def column_key(rows: Sequence[PlannedRow]) -> str:
    """The swept key of the columns: the micro-batch, or else the first."""
    keys = [said.split("=", 1)[0] for said in rows[0].swept]
    return next((key for key in keys if key == "train.micro_batch"), keys[0])


def heading(row: PlannedRow, key: str) -> str:
    """The value of the columns' key in a row."""
    return next(said.split("=", 1)[1] for said in row.swept if said.startswith(f"{key}="))


def label(row: PlannedRow, key: str) -> str:
    """A row's stage, its ranks, and its other swept keys."""
    others = [said.rsplit(".", 1)[-1] for said in row.swept if not said.startswith(f"{key}=")]
    return ", ".join([row.config.name, f"{row.config.ranks:,} ranks", *others])


def cell(row: PlannedRow, *, best: bool) -> str:
    """A row's speed, or the memory beyond the device's."""
    return f"{row.tokens_per_second:,.0f}{'*' * best}" if row.fits else f"+{row.missing_bytes / 1e9:.1f}"
