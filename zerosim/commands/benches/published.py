"""Published figures of training against their plans, and the errors of the plans."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from zerosim.commands.benches.samples import SampleRow
from zerosim.models.units import Task
from zerosim.plan.planned_row import PlannedRow
from zerosim.plan.planning import planned
from zerosim.scenario.schema import Scenario

NEAR = 0.12
"""A plan is near a run if the error of its MFU is at most this share of the run's MFU."""


@dataclass(frozen=True)
class PublishedFigure:
    """A published figure of a run, with the scenario that plans the run."""

    source: str
    name: str
    kind: str
    """The measured quantity: "mfu" and "hfu" are from 0 to 1."""
    measured: float
    scenario: Scenario
    planned_as: Callable[[PlannedRow], float]
    """The corresponding figure of a plan."""
    groups: Sequence[str]
    """The groups to which the figure belongs."""
    software: str = ""
    """The software that the source names; empty if it names none."""
    left_out: Scenario | None = None
    """The scenario without fitting to the figure's source, if that differs."""
    assumed: Mapping[str, Any] = field(default_factory=dict)
    """The assumptions about what the source does not say, by column or key of the scenario."""

    @property
    def memory(self) -> bool:
        """Whether the figure is memory, not speed."""
        return self.kind == "peak_memory_gib"


@dataclass(frozen=True)
class ComparedFigure:
    """A figure and its plan; `left_out` is the plan without fitting to the figure's source."""

    figure: PublishedFigure
    planned: float
    fits: bool
    left_out: float

    @property
    def error(self) -> float:
        """The error relative to the measurement; positive if the plan is too large."""
        return self.planned / self.figure.measured - 1

    @property
    def error_left_out(self) -> float:
        """The error without fitting to the figure's source."""
        return self.left_out / self.figure.measured - 1

    def document(self) -> SampleRow:
        """The comparison as JSON types."""
        figure = self.figure
        return {
            "source": figure.source, "run": figure.name, "device": figure.scenario.cluster.device,
            "software": figure.software, "measured_kind": figure.kind, "measured": figure.measured,
            "planned": self.planned, "error": self.error, "error_left_out": self.error_left_out, "fits": self.fits,
            "assumed": dict(figure.assumed),
        }


@dataclass(frozen=True)
class Errors:
    """The errors of many figures, relative to the measurements: their mean size, and the largest with its sign."""

    count: int
    mean: float
    near: float
    """The share of figures whose error is at most `near`."""
    worst: float


def errors(found: Iterable[float], near: float = NEAR) -> Errors:
    """
    >>> errors([0.1, -0.2])
    Errors(count=2, mean=0.15000000000000002, near=0.5, worst=-0.2)
    """
    every = list(found)
    sizes = [abs(each) for each in every]
    return Errors(len(sizes), fmean(sizes), fmean(each <= near for each in sizes), max(every, key=abs))


def task_of(scenario: Scenario) -> Task:
    """The task of a run."""
    return Task(scenario.model.sequence, scenario.model.vocabulary, "cross_entropy", tokens=True)


def compare(figures: Sequence[PublishedFigure]) -> list[ComparedFigure]:
    """Plan every run, once for all of its figures."""
    rows = dict[str, PlannedRow]()

    def row_of(scenario: Scenario) -> PlannedRow:
        key = repr(scenario)
        if key not in rows:
            (rows[key],) = planned(scenario, (), task_of)
        return rows[key]

    found = [(each, row_of(each.scenario), row_of(each.left_out or each.scenario)) for each in figures]
    return [ComparedFigure(each, each.planned_as(row), row.fits, each.planned_as(left)) for each, row, left in found]


def grouped(found: Sequence[ComparedFigure]) -> dict[str, list[ComparedFigure]]:
    """The figures of each group, by name."""
    names = sorted({name for each in found for name in each.figure.groups})
    return {name: [each for each in found if name in each.figure.groups] for name in names}
