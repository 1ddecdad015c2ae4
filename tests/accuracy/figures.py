"""Figures of published runs beside their plans, and the errors of the plans."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean

from tests.accuracy.lines import VALUES, RunLine, keys_of, known, lines_of, rules_of, scenario_of, unplanned
from zerosim.core.errors import UsageError, ZerosimError
from zerosim.plan.planned_row import PlannedRow, rows_of
from zerosim.scenario.schema import Scenario

TABLES = ("mpt.csv", "outside.csv", "parallel.csv")
NEAR = 0.15
"""A plan is near a figure if its error is at most this share of the figure."""
NEEDED = ("device", "devices", "sequence", "precision")
"""The columns without which no line has a plan."""


@dataclass(frozen=True)
class Figure:
    """A published figure of a run, with the scenario that plans the run."""

    source: str
    name: str
    kind: str
    """The measured quantity: "mfu" and "hfu" are from 0 to 1."""
    measured: float
    scenario: Scenario
    of_plan: Callable[[PlannedRow], float]
    """The corresponding figure of a plan."""
    left_out: Scenario | None = None
    """The scenario without what is fitted to the figure's source, if that differs."""

    @property
    def memory(self) -> bool:
        """Whether the figure is memory, not speed."""
        return self.kind == "peak_memory_gib"

    @property
    def mixture(self) -> bool:
        return self.scenario.model.kind == "mixture"


@dataclass(frozen=True)
class Compared:
    """A figure and its plan."""

    figure: Figure
    planned: float
    fits: bool

    @property
    def error(self) -> float:
        """The error relative to the measurement; positive if the plan is too large."""
        return self.planned / self.figure.measured - 1


@dataclass(frozen=True)
class Errors:
    """The errors of many figures, relative to the measurements: their mean size, and the largest with its sign."""

    count: int
    mean: float
    near: int
    """The figures whose error is at most `NEAR`."""
    worst: float


def errors(found: Iterable[float]) -> Errors:
    """
    >>> errors([0.1, -0.2])
    Errors(count=2, mean=0.15000000000000002, near=1, worst=-0.2)
    """
    every = list(found)
    return Errors(len(every), fmean(map(abs, every)), sum(abs(each) <= NEAR for each in every), max(every, key=abs))


def read(path: Path) -> tuple[list[Figure], list[str]]:
    """The figures in a table, and the lines that have no plan, each with the reason.

    A file named as a shipped table is read by the rules of that table, any other one by those of `parallel.csv`. Raises
    `UsageError` for anything but a table of runs, and if no line has a plan.
    """
    file, found, without = path.name if path.name in TABLES else "parallel.csv", list[Figure](), list[str]()
    for number, line in enumerate(lines_of(path), start=2):
        full, _ = known(line, file)
        try:
            if missing := [name for name in NEEDED if not line.get(name)]:
                without.append(f"{path.name}:{number}: lacks {', '.join(missing)}")
            elif reason := unplanned(full):
                without.append(f"{path.name}:{number}: {reason}")
            else:
                found.append(figure_of(line, full, file))
        except (ValueError, KeyError) as error:
            without.append(f"{path.name}:{number}: {error}")
    if not found:
        raise UsageError(f"{path}: no line has a plan: {without[0]}")
    return found, without


def figure_of(line: RunLine, full: RunLine, file: str) -> Figure:
    """The figure of a line, which is `full` with what the rules say."""
    scenario, kind, fitted = scenario_of(full), full["measured_kind"], rules_of(file).get("left_out", {})
    left_out = replace(scenario, cluster=replace(
        scenario.cluster, **keys_of(fitted[full["source"]], "cluster"))) if full["source"] in fitted else None
    measured = float(full.get("mfu_percent") or full["measured_value"]) / float(full.get("per", 1))
    ranks = [f"{key}{line[key]}" for key in ("tensor", "context", "pipeline", "expert")
             if line.get(key, "1") not in ("", "1")]
    name = ", ".join([f"{line['model']} on {line['devices']} {line['device']}", *ranks, line["precision"]])
    return Figure(full["source"], name, kind, measured, scenario, partial(VALUES[kind], full), left_out)


def compare(figures: Sequence[Figure]) -> tuple[list[Compared], list[str]]:
    """Plan every run, once for all of its figures; the figures of runs that cannot be planned, each with the reason."""
    of_run, found, without = dict[str, list[Figure]](), list[Compared](), list[str]()
    for each in figures:
        of_run.setdefault(repr(each.scenario), []).append(each)
    for some in of_run.values():
        try:
            (row,) = rows_of(some[0].scenario)
            found += [Compared(each, each.of_plan(row), row.fits) for each in some]
        except ZerosimError as error:
            without += [f"{each.source}: {each.name}: {error}" for each in some]
    order = {id(each): number for number, each in enumerate(figures)}
    return sorted(found, key=lambda each: order[id(each.figure)]), without
