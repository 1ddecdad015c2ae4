"""A scenario of training as a job: its rows trained, compared and judged."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from zerosim.core.errors import LaunchError, UsageError
from zerosim.core.words import plural
from zerosim.jobs.job import Job, Request, described, inputs_digest
from zerosim.scenario import Scenario
from zerosim.scenario.data import load_dataset
from zerosim.scenario.schema import parts_in, python_run
from zerosim.show.document import document
from zerosim.show.run_document import RunDocument
from zerosim.show.table import show_run
from zerosim.training.experiment import Experiment, prepare
from zerosim.training.keeping import Keeper, keeper
from zerosim.training.one_function import split_otherwise
from zerosim.training.program import Progress
from zerosim.verdict.judged_run import run_on
from zerosim.verdict.outcome import Outcome
from zerosim.worlds.launcher import launched_rank, restarts
from zerosim.worlds.local import LocalWorld
from zerosim.worlds.world import World

MOST_THREADS = 4096

TIMELINE_STEPS = 5
"""The number of last steps among which a timeline shows the one of median length."""


@dataclass(frozen=True)
class TrainingJob(Job):
    """Rows ready to be trained, and the object that saves and restores them."""

    scenario: Scenario
    experiment: Experiment
    keeping: Keeper | None
    keep_weights: bool
    traced: range
    restarts: int
    """The number of earlier starts of this training."""

    @property
    def inputs_sha256(self) -> str:
        return inputs_digest(self.scenario, self.experiment.data_sha256, *resumptions(self.experiment))

    @property
    def setting(self) -> str:
        whole = self.experiment.rows[0].in_one_piece
        about = f"{whole.words}, {whole.count:,} parameters, {self.scenario.train.optimizer}"
        return "\n".join([about, *python_run(self.scenario), *resumptions(self.experiment)])

    @property
    def files(self) -> dict[str, Path]:
        return files_of_training(self.scenario)

    @property
    def timeout_seconds(self) -> float:
        return self.scenario.world.timeout_seconds

    def check_local(self) -> None:
        """Refuse a memory limit: it applies to a process, and here all ranks share one."""
        if self.scenario.world.memory_limit_mb:
            raise LaunchError(
                "world.memory_limit_mb limits each rank's process, but here all ranks share one process: run it with"
                f" mpirun -n {self.scenario.world.ranks}")

    def on_ranks(self, ranks: int) -> list[list[str]]:
        nearest = max(1, round(self.scenario.train.micro_batches / ranks)) * ranks
        return [[f"world.ranks={ranks}"], [f"world.ranks={ranks}", f"train.micro_batches={nearest}"]]

    def local_world(self) -> LocalWorld:
        if self.scenario.world.ranks > MOST_THREADS:
            raise UsageError(
                f"a run has at most {MOST_THREADS} ranks in one process, and the scenario wants "
                f"{self.scenario.world.ranks}: zerosim plan is for more")
        return LocalWorld(self.scenario.world.ranks)

    def run(self, world: World, progress: Progress) -> Outcome | None:
        with ended(progress):
            if self.keeping is not None and launched_rank() <= 0:
                self.keeping.begin()
            return run_on(
                world, self.experiment, progress, keep_weights=self.keep_weights, traced=self.traced,
                keeping=self.keeping, restarts=self.restarts)

    def show(self, console: Console, outcome: Outcome, found: dict[str, Any], **options: Any) -> None:
        show_run(console, RunDocument(found), **options)

    def document(self, outcome: Outcome, world: World, command: str | None = None) -> dict[str, Any]:
        return document(outcome, described(world), command)


def training_job(scenario: Scenario, request: Request) -> TrainingJob:
    """The scenario ready to run, with its data loaded and its checkpoint found."""
    if request.every is not None and not scenario.checkpoint.folder:
        raise UsageError("--every needs a folder for checkpoints; add --checkpoint DIR")
    experiment, keeping = keeper(
        prepare(scenario, load_dataset(scenario)), request.resume, accept_python=request.accept_python)
    first, begun_before = launched_rank() <= 0, restarts(resumes=request.resume is not None)
    scenario.faults_after(begun_before)
    if first:
        refuse_split_otherwise(experiment)
    return TrainingJob(scenario, experiment, keeping, request.weights, traced_steps(scenario, request), begun_before)


def refuse_split_otherwise(experiment: Experiment) -> None:
    """Compare each split model with the model in one piece; raises `ScenarioError` with the first differences."""
    rows = {(each.model.task.parallel, each.parallel.pipelining): each
            for each in experiment.rows if each.directions.places > 1}
    for config in rows.values():
        with experiment.scenario.origin.blaming(("model", "kind")):
            found = split_otherwise(config)
        if found:
            raise experiment.scenario.origin.error(
                f"the split model of {config.name} is not the model in one piece: {found}", ("model", "kind"))


def traced_steps(scenario: Scenario, request: Request) -> range:
    """The steps to trace: the named ones; or the last for a trace; or the last few for a timeline."""
    steps, named = scenario.train.steps, request.trace_steps
    if named is None:
        count = 1 if request.trace or request.report or request.last_step else TIMELINE_STEPS * request.timeline
        return range(max(steps + 1 - count, 1), steps + 1)
    if named[-1] > steps:
        raise UsageError(f"--trace-steps: there is no step {named[-1]}; train.steps = {steps}")
    return range(named[0], named[-1] + 1)


def resumptions(experiment: Experiment) -> list[str]:
    """The checkpoint from which each row resumes, if it does, in words."""
    return [
        f"{row.name} resumes after step {row.done} of {row.steps}, from {row.resumed.path}, saved by "
        f"{row.resumed.stage} on {plural(row.resumed.ranks, 'rank')}"
        for row in experiment.rows if row.resumed is not None
    ]


@contextmanager
def ended(shown: Progress) -> Iterator[None]:
    """A context that ends the progress display even if the training fails, which restores the terminal's cursor."""
    try:
        yield
    finally:
        shown.end()


def files_of_training(scenario: Scenario) -> dict[str, Path]:
    """The files that a training may read, by purpose, including the name of shipped data as if it were a file.

    >>> sorted(files_of_training(Scenario()))
    ['the data', 'the scenario']
    """
    origin = scenario.origin
    data = origin.folder(("data", "source")) / str(scenario.data.source)
    found = {"the scenario": Path(origin.file), "the data": data}
    for where, part in parts_in(scenario):
        file = part.source.rpartition(":")[0]
        if file.endswith(".py"):
            found[f"the code of {where}"] = origin.folder(tuple(where.split("."))) / file
    if scenario.model.weights:
        found["what training begins with"] = origin.folder(("model", "weights")) / scenario.model.weights
    return found
