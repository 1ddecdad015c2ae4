"""Published figures of training against their plans, and the one reader of files of runs.

Each line of a file is one figure of one run, with the columns that `runs/README.md` explains. A `RunTable` says how its
lines become scenarios; here is that of MosaicML's runs of MPT models under FSDP. A run is planned without fitted
numbers of its own; its device has three (`zerosim/plan/machines.toml`).
"""

import csv
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from statistics import fmean

from zerosim.commands.benches.samples import SampleRow
from zerosim.errors import UsageError
from zerosim.models.units import Task
from zerosim.plan.planned_row import PlannedRow
from zerosim.plan.planning import planned
from zerosim.scenario.machine import ClusterKeys
from zerosim.scenario.schema import Scenario
from zerosim.scenario.sections import ModelKeys, Parallel, Train, WorldKeys

NEAR = 0.12
"""A plan is near a run if the error of its MFU is at most this share of the run's MFU."""
RunLine = Mapping[str, str]
"""A line of a file of runs: the texts by column."""


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
    assumed: RunLine = field(default_factory=dict)
    """The assumptions about what the source does not say, by column."""

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


@dataclass(frozen=True)
class RunTable:
    """The columns of a file of runs, the values that some of them allow, and the figure of a line.

    `figure` gets a line and the name of its run, and raises `ValueError` for a malformed number.
    """

    file: str
    """The shipped file."""
    columns: Sequence[str]
    allowed: Mapping[str, Collection[str]]
    figure: Callable[[RunLine, str], PublishedFigure]
    near: float
    unplanned: Callable[[RunLine], str] = lambda line: ""
    """The reason for which a line is left out; empty if it has a plan."""
    named: str = "{model} on {devices} {device}, {sequence} × {micro_batch} × {accumulation}, {precision}"
    """The name of a line's run."""

    def read(self, path: Path | None = None) -> list[PublishedFigure]:
        """The figures in a file, or in the shipped one. Raises `UsageError` for anything but a file of runs.

        >>> MPT.read()[0].name
        '30b on 32 a100_40gb, 2048 × 4 × 1, bf16'
        """
        found = path or shipped(self.file)
        return self.figures(lines_of(found), str(found))

    def figures(self, lines: Iterable[RunLine], place: str) -> list[PublishedFigure]:
        """The figures of lines; `place` is their file. Raises `UsageError` for a malformed line."""
        return [self._figure(line, f"{place}:{number}") for number, line in enumerate(lines, start=2)
                if not self.unplanned(line)]

    def _figure(self, line: RunLine, place: str) -> PublishedFigure:
        missing = [name for name in self.columns if not line.get(name)]
        if missing:
            raise UsageError(f"{place}: lacks {', '.join(missing)}; each line needs {', '.join(self.columns)}")
        for column, known in self.allowed.items():
            if line[column] not in known:
                raise UsageError(f"{place}: {column}: no {line[column]!r}; there are {', '.join(known)}")
        try:
            return self.figure(line, self.named.format(**line))
        except ValueError as error:
            raise UsageError(f"{place}: {error}") from error


def shipped(name: str) -> Traversable:
    """A file of runs in the package."""
    return resources.files("zerosim.commands.benches") / "runs" / name


def lines_of(path: Path | Traversable) -> list[dict[str, str]]:
    """The lines of a file of runs. Raises `UsageError` for anything else."""
    try:
        return list(csv.DictReader(path.read_text("utf-8").splitlines()))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: no file of published runs: {getattr(error, 'strerror', '') or error}") from error


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


SHAPES = {
    "125m": (768, 12, 12), "350m": (1024, 16, 24), "760m": (1536, 12, 24), "1b": (2048, 16, 24), "3b": (2560, 20, 32),
    "7b": (4096, 32, 32), "13b": (5120, 40, 40), "30b": (7168, 56, 48), "70b": (8192, 64, 80),
}
"""Width, heads and layers."""
BETWEEN = {"a100_40gb": "roce_8x200", "a100_80gb": "roce_8x200", "h100_80gb": "infiniband_8x400"}
VOCABULARY = 50368
WIRE = {"bf16": "weights", "amp_bf16": "fp32", "amp_fp8": "fp32"}
"""The precision of reductions of gradients, for each precision of weights."""


def mpt_figure(line: RunLine, name: str) -> PublishedFigure:
    """The MFU of a run of MPT; runs in 8 bits are a group of their own."""
    group = line["device"] + ", fp8" * (line["precision"] == "amp_fp8")
    return PublishedFigure(
        "MPT", name, "mfu", float(line["mfu_percent"]) / 100, mpt_scenario(line), lambda row: row.mfu, [group])


def mpt_scenario(line: RunLine) -> Scenario:
    width, heads, layers = SHAPES[line["model"]]
    devices, accumulation = int(line["devices"]), int(line["accumulation"])
    blocks = tuple(range(1, layers + 1)) if line["activation_checkpointing"] == "True" else False
    sharded = line["sharding"] == "FULL_SHARD"
    return Scenario(
        world=WorldKeys(devices),
        model=ModelKeys(
            kind="transformer", layers=layers, width=width, heads=heads, vocabulary=VOCABULARY,
            sequence=int(line["sequence"]), tied_embeddings=True,
        ),
        train=Train(
            micro_batch=int(line["micro_batch"]), micro_batches=devices * accumulation, optimizer="adamw",
            precision="bf16",
        ),
        parallel=Parallel(
            stages=("zero3",), recompute=blocks, prefetch=sharded, overlap=True, reshard_after_forward=sharded,
            accumulation="micro_batch", reduce_dtype=WIRE[line["precision"]],
        ),
        cluster=ClusterKeys(
            device=line["device"], between=BETWEEN[line["device"]], kernels="fused",
            products="fp8" if line["precision"] == "amp_fp8" else "weights",
        ),
    )


MPT = RunTable(
    "mpt.csv",
    ("model", "device", "devices", "sequence", "micro_batch", "accumulation", "precision", "sharding",
     "activation_checkpointing", "mfu_percent"),
    {"model": SHAPES, "device": BETWEEN, "precision": WIRE}, mpt_figure, NEAR)
