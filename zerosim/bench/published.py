"""Published runs of training under FSDP against their plans: the error of a plan's MFU, device by device.

Each line of a file of runs is one run, with the columns that `runs/README.md` explains. A run is planned as a scenario
without fitted numbers of its own; its device has three (`zerosim/planner/machines.toml`).
"""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from statistics import fmean
from typing import Any

from zerosim.errors import UsageError
from zerosim.models.units import Task
from zerosim.planner.planning import planned
from zerosim.scenario.machine import ClusterKeys
from zerosim.scenario.schema import Scenario
from zerosim.scenario.sections import ModelKeys, Parallel, Train, WorldKeys

SHAPES = {
    "125m": (768, 12, 12), "350m": (1024, 16, 24), "760m": (1536, 12, 24), "1b": (2048, 16, 24), "3b": (2560, 20, 32),
    "7b": (4096, 32, 32), "13b": (5120, 40, 40), "30b": (7168, 56, 48), "70b": (8192, 64, 80),
}
"""Width, heads and layers."""
BETWEEN = {"a100_40gb": "roce_8x200", "a100_80gb": "roce_8x200", "h100_80gb": "infiniband_8x400"}
VOCABULARY = 50368
NEAR = 0.12
"""A plan is near a run if the error of its MFU is at most this share of the run's MFU."""
COLUMNS = (
    "model", "device", "devices", "sequence", "micro_batch", "accumulation", "precision", "sharding",
    "activation_checkpointing", "mfu_percent",
)


@dataclass(frozen=True)
class PublishedRun:
    """A published run: its scenario, and its measured MFU from 0 to 1."""

    name: str
    device: str
    precision: str
    scenario: Scenario
    mfu: float


@dataclass(frozen=True)
class ComparedRun:
    """A run and the MFU of its plan."""

    run: PublishedRun
    planned_mfu: float

    @property
    def error(self) -> float:
        """The error relative to the measurement; positive if the plan is too fast."""
        return self.planned_mfu / self.run.mfu - 1

    def document(self) -> dict[str, Any]:
        """The comparison as JSON types."""
        return {
            "run": self.run.name, "device": self.run.device, "precision": self.run.precision, "mfu": self.run.mfu,
            "planned_mfu": self.planned_mfu, "error": self.error,
        }


@dataclass(frozen=True)
class Errors:
    """The errors of many runs, relative to the measurements."""

    count: int
    mean: float
    near: float
    """The share of runs with an error of at most 12%."""


def errors(compared: Sequence[float]) -> Errors:
    """
    >>> errors([0.1, -0.2])
    Errors(count=2, mean=0.15000000000000002, near=0.5)
    """
    sizes = [abs(each) for each in compared]
    return Errors(len(sizes), fmean(sizes), fmean(each <= NEAR for each in sizes))


def published_runs(path: Path | None = None) -> list[PublishedRun]:
    """The runs in a file, or the shipped ones. Raises `UsageError` for anything but a file of runs.

    >>> published_runs()[0].name
    '30b on 32 a100_40gb, 2048 × 4 × 1'
    """
    found = shipped("mpt.csv") if path is None else path
    return [run_of(line, f"{found}:{number}") for number, line in enumerate(lines_of(found), start=2)]


def shipped(name: str) -> Traversable:
    """A file of runs in the package."""
    return resources.files("zerosim.bench") / "runs" / name


def lines_of(path: Path | Traversable) -> list[dict[str, str]]:
    """The lines of a file of runs. Raises `UsageError` for anything else."""
    try:
        return list(csv.DictReader(path.read_text("utf-8").splitlines()))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: no file of published runs: {getattr(error, 'strerror', '') or error}") from error


def run_of(line: dict[str, Any], place: str) -> PublishedRun:
    """The run of one line; `place` is its position."""
    missing = [name for name in COLUMNS if not line.get(name)]
    if missing:
        raise UsageError(f"{place}: lacks {', '.join(missing)}; each line needs {', '.join(COLUMNS)}")
    for column, known in (("model", SHAPES), ("device", BETWEEN), ("precision", WIRE)):
        if line[column] not in known:
            raise UsageError(f"{place}: {column}: no {line[column]!r}; there are {', '.join(known)}")
    try:
        scenario = scenario_of(line)
        mfu = float(line["mfu_percent"]) / 100
    except ValueError as error:
        raise UsageError(f"{place}: {error}") from error
    name = "{model} on {devices} {device}, {sequence} × {micro_batch} × {accumulation}".format(**line)
    return PublishedRun(name, line["device"], line["precision"], scenario, mfu)


WIRE = {"bf16": "weights", "amp_bf16": "fp32", "amp_fp8": "fp32"}
"""The precision of reductions of gradients, for each precision of weights."""


def scenario_of(line: dict[str, str]) -> Scenario:
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


def task_of(scenario: Scenario) -> Task:
    """The task of a run."""
    return Task(scenario.model.sequence, scenario.model.vocabulary, "cross_entropy", tokens=True)


def compare(runs: Sequence[PublishedRun]) -> list[ComparedRun]:
    """Plan every run."""
    found = []
    for run in runs:
        (row,) = planned(run.scenario, (), task_of)
        found.append(ComparedRun(run, row.mfu))
    return found
