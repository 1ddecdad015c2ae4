"""All that the laws know of the package's inside: the keys of a scenario, a run in one process, its rows and figures.

Settings are a flat dict, `{"world.ranks": 4, "train.optimizer": "adam"}`. Two keys are of no scenario: the drawn
samples are multiplied by `data.loud`, and a share `data.uncounted` of the targets of sequences does not count.
"""

import hashlib
import platform
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from threadpoolctl import threadpool_info

from zerosim import plan
from zerosim.core.errors import ScenarioError
from zerosim.scenario import Scenario, load
from zerosim.scenario.data import load_dataset
from zerosim.scenario.data.dataset import Dataset
from zerosim.scenario.reading import kind_of
from zerosim.scenario.sections import ClusterKeys, ModelKeys, Parallel, Train, WorldKeys
from zerosim.scenario.values import names_in
from zerosim.training.experiment import Experiment, prepare
from zerosim.training.keeping import with_checkpoints
from zerosim.training.measurement import Measurement
from zerosim.training.program import Progress
from zerosim.verdict import judged_run
from zerosim.verdict.judged_run import run_locally, run_on
from zerosim.verdict.outcome import Outcome
from zerosim.worlds.local import LocalWorld
from zerosim.worlds.mpi import MpiWorld, connect

Refused = ScenarioError
SHIPPED = Path(__file__).parents[2] / "scenarios"
TRAINING = sorted(
    str(path.relative_to(SHIPPED)) for path in (*SHIPPED.glob("*.toml"), *SHIPPED.glob("examples/*/*.toml"))
    if tomllib.loads(path.read_text(encoding="utf-8")).get("kind", "training") == "training")
SECTIONS = {"world": WorldKeys, "model": ModelKeys, "train": Train, "parallel": Parallel, "cluster": ClusterKeys}
KEYS: dict[str, tuple[Any, ...]] = {
    f"{section}.{key.name}": (True, False) if key.type == kind_of(bool) else names_in(key.type)
    for section, of in SECTIONS.items() for key in kind_of(of).fields if key.name != "own"}
"""Every key of these sections with the values of a choice or a switch; of other keys, nothing."""
DEFAULTS: dict[str, Any] = {f"{section}.{key.name}": getattr(of(), key.name)
                            for section, of in SECTIONS.items() for key in kind_of(of).fields}
"""The value of each key that a scenario does not set."""


def prepared(settings: Mapping[str, Any]) -> Experiment:
    """The experiment of drawn settings, on drawn samples; raises `Refused` where the package does."""
    document = in_tables(settings)
    drawing = document.pop("data", {})
    scenario = load(document)
    return prepare(scenario, samples(scenario, **drawing))


def planned(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The planned rows of settings, with every figure; raises `Refused` where the package does."""
    return list(plan(in_tables(settings)).document["rows"])


def in_tables(settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Settings as the tables of a scenario."""
    document: dict[str, dict[str, Any]] = {}
    for key, value in settings.items():
        section, name = key.split(".")
        document.setdefault(section, {})[name] = value
    return document


def samples(scenario: Scenario, loud: float = 1, uncounted: float = 0, regression: bool = False) -> Dataset:
    """Random samples; the first feature is always 0, so that some gradients are."""
    random, model = np.random.default_rng(0), scenario.model
    if model.kind == "mlp":
        x = (loud * random.standard_normal((40, 6))).astype(np.float32)
        x[:, 0] = 0
        if regression:
            return Dataset(x, random.standard_normal((40, 3)).astype(np.float32), None, None, None)
        return Dataset(x, random.integers(0, 3, 40), None, None, 3)
    tokens = random.integers(0, model.vocabulary, (24, model.sequence + 1)).astype(np.int8)
    x = tokens[:, :-1].copy()
    tokens[:, 1:][uncounted > random.random((24, model.sequence))] = -1
    return Dataset(x, tokens[:, 1:], None, None, model.vocabulary, "abcdefghij"[: model.vocabulary])


def read(path: Path) -> None:
    """Read a scenario's file; raises `Refused` where the package does."""
    load(path)


def shipped(name: str, overrides: Sequence[str]) -> Experiment:
    """The experiment of a shipped scenario that trains."""
    scenario = load(SHIPPED / name, overrides)
    assert isinstance(scenario, Scenario)
    return prepare(scenario, load_dataset(scenario))


@dataclass(frozen=True)
class Ran:
    """The rows of a run by name, each with its digests and figures, and the failed checks in words."""

    rows: dict[str, dict[str, Any]]
    failures: list[tuple[str, str]]


def run(experiment: Experiment, resume: Path | None = None) -> Ran:
    """The experiment trained and judged in one process, a thread for each rank; from a checkpoint, if there is one."""
    return ran(run_locally(with_checkpoints(experiment, None if resume is None else str(resume))))


def run_under_mpi(experiments: Iterable[Experiment]) -> Iterator[Ran | None]:
    """Each experiment on the ranks of this start of mpirun; what came of it on rank 0, None on the others."""
    comm = connect(300.0)
    for experiment in experiments:
        own = comm.channel()
        outcome = run_on(MpiWorld(own), experiment, Progress())
        own.close()
        yield outcome and ran(outcome)


def ran(outcome: Outcome) -> Ran:
    return Ran({row.name: figures(row.measured) for row in outcome.trained}, outcome.failures)


def unjudged(experiment: Experiment) -> list[dict[str, Any]]:
    """The digests and figures of the rows of a run in one process, which no formula judges: a third of the time."""
    with patch.object(judged_run, "outcome_of", lambda comm, world, experiment, measured: [*measured]):
        done = run_on(LocalWorld(experiment.scenario.world.ranks), with_checkpoints(experiment, None), Progress())
    return [figures(row) for row in done]


def figures(row: Measurement) -> dict[str, Any]:
    """The digests of a row, and of each rank bytes sent, messages, model states between steps, peaks and operations."""
    losses = hashlib.sha256(b"".join(loss.tobytes() for loss in row.losses)).hexdigest()
    return {
        "weights": row.weights_sha256[:16], "optimizer": row.optimizer_sha256[:16],
        "losses": losses[:16], "loss": [float(loss[0]) for loss in row.losses],
        "sent": [rank.sent_bytes for rank in row.traffic],
        "messages": [rank.messages for rank in row.traffic],
        "kept": [sum(rank.resting_bytes.values()) for rank in row.memory],
        "peaks": [(rank.peak_bytes, rank.host_peak_bytes, rank.moved_bytes) for rank in row.memory],
        "operations": row.operations, "passes": row.passes}


def arithmetic() -> str:
    """What products, sums and functions may depend on: where it is another, equal bits are not owed."""
    blas = {f"{each['internal_api']} {each['version']} {each.get('architecture', '')}" for each in threadpool_info()
            if each["user_api"] == "blas"}
    return f"NumPy {np.__version__}, {', '.join(sorted(blas))}, {platform.machine()}"
