"""The parts of the time of a traced step: a line for each row, the mean over ranks and traced steps."""

from statistics import fmean

from rich.console import Console

from zerosim.instruments.trace import RankStep
from zerosim.report.grid import Column, show_grid, show_words
from zerosim.verdict.outcome import Outcome
from zerosim.words import plural, short

FIGURES = {"step": "ns", "computing": "computation_ns", "waiting": "waiting_ns", "idle": "idle_ns"}
OF_MEMORY = {"offload": "moving_ns", "exposed": "waiting_for_memory_ns"}
"""The time of copies between tiers of memory, and of the step's waits for them."""
LEGEND = (
    "Mean over ranks and traced steps. Waiting: exposed communication. Hidden: the share of the time in collectives "
    "that overlaps computation."
)
TURNS = "In this process ranks take turns: others compute while one waits. Use mpirun for real times."


def warning(outcome: Outcome, *, timed: bool, shared_cores: int) -> str:
    """A warning about times that mean little: in the local world, and if there are more ranks than cores."""
    return sharing(outcome.scenario.world.ranks, shared_cores) if timed else TURNS


def sharing(ranks: int, shared_cores: int) -> str:
    """
    >>> sharing(4, 2), sharing(4, 0)
    ('4 ranks share 2 cores, so times include waiting for a core.', '')
    """
    cores = plural(shared_cores, "core")
    return f"{plural(ranks, 'rank')} share {cores}, so times include waiting for a core." if shared_cores else ""


def show_times(console: Console, outcome: Outcome, *, warned: str) -> None:
    """Show milliseconds of each figure; `warned` says why times may mean little."""
    traces = [(row.name, row.measured.trace) for row in outcome.trained]
    rows = [(name, trace) for name, trace in traces if trace is not None and trace.steps]
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
    show_words(console, f"{LEGEND} {warned}".rstrip(), style="dim")
    console.print()


def milliseconds(steps: list[RankStep], figure: str) -> str:
    return short(fmean(getattr(step, figure) for step in steps) / 1e6)


def share(hidden: float | None) -> str:
    """
    >>> share(0.714), share(None)
    ('71%', '–')
    """
    return "–" if hidden is None else f"{100 * hidden:.0f}%"
