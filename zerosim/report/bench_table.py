"""The figures of a benchmark in the terminal."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from zerosim.bench import BATCH, RANKS, WIDTHS, Timing
from zerosim.stages import STAGES


def show_timings(console: Console, timings: Sequence[Timing]) -> None:
    """A row a stage: its step, and its ratio to half of what one process needs."""
    alone = timings[0].document()["alone_seconds"]
    console.print(
        f"{'-'.join(map(str, WIDTHS))} MLP, AdamW, batch {BATCH}: "
        f"one process {1e3 * alone:.1f} ms, divided by {RANKS} = {1e3 * alone / RANKS:.1f} ms",
        highlight=False,
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("stage", "ms per step", "ratio", "range of ratios"):
        table.add_column(heading, justify="left" if heading == "stage" else "right")
    for timing in timings:
        figures = timing.document()
        low, high = figures["ratio_range"]
        table.add_row(
            STAGES[timing.stage].title,
            f"{1e3 * figures['step_seconds']:.1f}",
            f"{figures['ratio']:.2f}",
            f"{low:.2f} … {high:.2f}",
        )
    console.print(table)
