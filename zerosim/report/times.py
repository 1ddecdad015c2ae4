"""The parts of the time of a traced step: a line for each row, the mean over ranks and traced steps."""

from statistics import fmean

from rich.console import Console

from zerosim.instruments.trace import RankStep
from zerosim.report.grid import Column, show_grid, show_words
from zerosim.report.run_document import RunDocument
from zerosim.words import short

FIGURES = {"step": "ns", "computing": "computation_ns", "waiting": "waiting_ns", "idle": "idle_ns"}
OF_MEMORY = {"offload": "moving_ns", "exposed": "waiting_for_memory_ns"}
"""The time of copies between tiers of memory, and of the step's waits for them."""
LEGEND = (
    "Mean over ranks and traced steps. Waiting: exposed communication. Hidden: the share of the time in collectives "
    "that overlaps computation."
)


def show_times(console: Console, run: RunDocument) -> None:
    """Show milliseconds of each figure, and why times may mean little."""
    rows = [(row.name, row.trace) for row in run.rows if row.trace]
    if not rows:
        return
    columns = [
        Column(f"{heading}\nms", [milliseconds(trace.steps, figure) for _, trace in rows])
        for heading, figure in FIGURES.items()
    ]
    if any(step.moving_ns for _, trace in rows for step in trace.steps):
        columns += [Column(f"{heading}\nms", [milliseconds(trace.steps, figure) for _, trace in rows])
                    for heading, figure in OF_MEMORY.items()]
    columns.append(Column("collectives\nms", [milliseconds(trace.steps, "communication_ns") for _, trace in rows]))
    columns.append(Column("hidden\nof it", [share(trace.hidden) for _, trace in rows]))
    console.print()
    show_words(console, "The time of a step", style="bold")
    show_grid(console, [name for name, _ in rows], columns)
    show_words(console, f"{LEGEND} {run.about_times}".rstrip(), style="dim")
    console.print()


def milliseconds(steps: list[RankStep], figure: str) -> str:
    return short(fmean(getattr(step, figure) for step in steps) / 1e6)


def share(hidden: float | None) -> str:
    """
    >>> share(0.714), share(None)
    ('71%', '–')
    """
    return "–" if hidden is None else f"{100 * hidden:.0f}%"
