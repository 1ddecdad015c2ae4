"""How a traced step's time was spent, in the terminal: a row a stage, the mean over its ranks and traced steps."""

from statistics import fmean

from rich.console import Console

from zerosim.instruments.trace import RankStep
from zerosim.report.figures import short
from zerosim.report.grid import Column, show_grid, show_words
from zerosim.verdict.outcome import Outcome

FIGURES = {"step": "ns", "computing": "computation_ns", "waiting": "waiting_ns", "idle": "idle_ns"}
LEGEND = (
    "The mean over ranks, of the steps that were traced. Waiting: the step communicates and does nothing else, or "
    "waits for what is communicated beside it. Hidden: of the time in collectives, how much the rank computed "
    "meanwhile."
)
TURNS = "In this process ranks take turns, so that others compute while one waits; mpirun makes them real."


def show_times(console: Console, outcome: Outcome, *, timed: bool) -> None:
    """Milliseconds of each figure; with a word of warning where time says little, as in the local world."""
    rows = [(stage.name, stage.trace) for stage in outcome.stages if stage.trace is not None and stage.trace.steps]
    if not rows:
        return
    columns = [
        Column(f"{heading}\nms", [milliseconds(trace.steps, figure) for _, trace in rows])
        for heading, figure in FIGURES.items()
    ]
    columns.append(Column("collectives\nms", [milliseconds(trace.steps, "communication_ns") for _, trace in rows]))
    columns.append(Column("hidden\nof it", [share(trace.hidden) for _, trace in rows]))
    console.print()
    show_words(console, "The time of a step", style="bold")
    show_grid(console, [name for name, _ in rows], columns)
    show_words(console, LEGEND if timed else f"{LEGEND} {TURNS}", style="dim")
    console.print()


def milliseconds(steps: list[RankStep], figure: str) -> str:
    return short(fmean(getattr(step, figure) for step in steps) / 1e6)


def share(hidden: float | None) -> str:
    """
    >>> share(0.714), share(None)
    ('71%', '–')
    """
    return "–" if hidden is None else f"{100 * hidden:.0f}%"
