"""Benchmarks as ratios within one run, because absolute times depend more on the machine than on the program.

`step` trains on 2 ranks with AdamW: a 784-1024-1024-1024-10 MLP with a global batch of 256, or a transformer of GPT-2's
shape with 4 blocks, width 256 and 8 heads, on 16 sequences of 128 tokens. A round times one process with the whole
batch (rank 0, while the other rank waits), then one step of each stage on both ranks; the ratio is a stage's time over
half of the one process's time: 1 would be perfect scaling.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from zerosim.commands.benches.samples import Sample, by_turns, slower, timed
from zerosim.core.allocation import allocate
from zerosim.core.comm import Communicator, among
from zerosim.observe.observed import Observed
from zerosim.scenario import ModelKeys, Parallel, Scenario, Train, WorldKeys
from zerosim.scenario.data import Dataset
from zerosim.stages import STAGES
from zerosim.stages.replica import Replica
from zerosim.training.build import initial_weights, replica
from zerosim.training.experiment import Experiment, prepare

RANKS = 2


@dataclass(frozen=True)
class Workload:
    """The work of a benchmark: a model, the samples in the batch of all ranks, and the numbers or tokens per sample."""

    model: ModelKeys
    batch: int
    inputs: int
    outputs: int

    def dataset(self) -> Dataset:
        """Random pixels and classes, or random tokens."""
        random = np.random.default_rng(0)
        if self.model.kind == "transformer":
            tokens = random.integers(0, self.outputs, (self.batch, self.inputs + 1))
            return Dataset(tokens[:, :-1], tokens[:, 1:], None, None, self.outputs)
        x = random.random((self.batch, self.inputs), np.float32)
        return Dataset(x, random.integers(0, self.outputs, self.batch), None, None, self.outputs)


WORKLOADS = {
    "mlp": Workload(ModelKeys(hidden=(1024, 1024, 1024)), batch=256, inputs=784, outputs=10),
    "transformer": Workload(
        ModelKeys(kind="transformer", layers=4, width=256, heads=8), batch=16, inputs=128, outputs=65
    ),
}


def time_steps(comm: Communicator, rounds: int, workload: Workload) -> list[Sample]:
    """The timings of every stage."""
    tasks: dict[str, Callable[[], float]] = {
        name: partial(slower, comm, steps(plain(comm, name, workload))) for name in STAGES}
    tasks["alone"] = float
    if comm.rank == 0:
        tasks["alone"] = partial(timed, steps(plain(among(comm, range(1)), "ddp", workload)))
    seconds = by_turns(comm, rounds, tasks)
    return [Sample({"stage": name}, {"step_seconds": seconds[name], "alone_seconds": seconds["alone"]}, shared_by=RANKS)
            for name in STAGES]


def plain(comm: Communicator, stage: str, workload: Workload) -> tuple[Experiment, Replica]:
    """The state of a rank without instruments."""
    experiment = experiment_of(comm.size, stage, workload)
    return experiment, replace(replica(experiment.rows[0], Observed(comm), allocate), comm=comm)


def steps(trained: tuple[Experiment, Replica]) -> Iterator[None]:
    """An iterator that trains one step per item."""
    experiment, mine = trained
    config, = experiment.rows
    mine.begin(initial_weights(config))
    (batch,) = experiment.of_rank(config, mine.comm.rank)
    for number in itertools.count(1):
        config.stage.step(mine, replace(batch, step=number))
        yield


def experiment_of(ranks: int, stage: str, workload: Workload) -> Experiment:
    """The whole batch, with one micro-batch per rank."""
    scenario = Scenario(
        world=WorldKeys(ranks),
        model=workload.model,
        train=Train(steps=1, micro_batch=workload.batch // ranks, micro_batches=ranks, optimizer="adamw"),
        parallel=Parallel(stages=(stage,)),
    )
    return prepare(scenario, workload.dataset())
