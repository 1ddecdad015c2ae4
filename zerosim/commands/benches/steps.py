"""Steps of each stage on 2 ranks as ratios within one run: absolute times depend more on the machine than the program.

Each round times one process with the whole batch (rank 0, while the other rank waits), and one step of each stage on
both ranks. The ratio is a stage's time over half of the one process's time: 1 would be perfect scaling.
"""

import argparse
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from zerosim.commands.benches.samples import SampleRow, by_turns, on_rank_0, sample
from zerosim.commands.output import standard_output
from zerosim.core.allocation import allocate
from zerosim.core.comm import Communicator, among
from zerosim.core.errors import UsageError
from zerosim.observe.observed import Observed
from zerosim.scenario import ModelKeys, Parallel, Scenario, Train, WorldKeys
from zerosim.scenario.data import Dataset
from zerosim.show.grid import Column, show_grid
from zerosim.stages import STAGES
from zerosim.training.build import initial_weights, replica
from zerosim.training.experiment import prepare
from zerosim.worlds.mpi import MpiWorld
from zerosim.worlds.mpi_communicator import MpiCommunicator

RANKS = 2


class Workload(NamedTuple):
    """A model, the samples in the batch of all ranks, the numbers or tokens of each, and the model's outputs."""

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
        ModelKeys(kind="transformer", layers=4, width=256, heads=8), batch=16, inputs=128, outputs=65),
}


def bench(arguments: argparse.Namespace, comm: MpiCommunicator) -> dict[str, Any] | None:
    """Time steps of every stage; None on ranks other than 0."""
    if comm.size != RANKS:
        raise UsageError(f"bench step measures {RANKS} ranks and the launcher started {comm.size}: run it with mpirun "
                         f"-n {RANKS}, or without")
    workload = WORKLOADS[arguments.model]
    (rows,) = MpiWorld(comm).run(lambda comm: on_rank_0(comm, time_steps, arguments.rounds, workload))
    if rows is None:
        return None
    show_steps(standard_output(arguments), rows, workload)
    return {"stages": rows}


def time_steps(comm: Communicator, rounds: int, workload: Workload) -> list[SampleRow]:
    """The times of a step of every stage."""
    tasks = {stage: stepping(comm, stage, workload) for stage in STAGES}
    tasks["alone"] = stepping(among(comm, range(1)), "ddp", workload) if comm.rank == 0 else lambda: None
    seconds = by_turns(comm, rounds, tasks)
    return [sample({"stage": stage}, {"step_seconds": seconds[stage], "alone_seconds": seconds["alone"]},
                   shared_by=RANKS) for stage in STAGES]


def stepping(comm: Communicator, stage: str, workload: Workload) -> Callable[[], None]:
    """A function that trains one more step on this rank, with one micro-batch per rank and without instruments."""
    experiment = prepare(Scenario(
        world=WorldKeys(comm.size), model=workload.model, parallel=Parallel(stages=(stage,)),
        train=Train(steps=1, micro_batch=workload.batch // comm.size, micro_batches=comm.size, optimizer="adamw")),
        workload.dataset())
    (config,), numbers = experiment.rows, itertools.count(1)
    own = replace(replica(config, Observed(comm), allocate), comm=comm)
    own.begin(initial_weights(config))
    (batch,) = experiment.of_rank(config, comm.rank)

    def step() -> None:
        config.stage.step(own, replace(batch, step=next(numbers)))

    return step


def show_steps(console: Console, rows: Sequence[SampleRow], workload: Workload) -> None:
    """Print the times of every stage's step, and the workload above."""
    model, alone = workload.model, 1e3 * rows[0]["alone_seconds"]
    words = f"{workload.inputs} inputs, {' '.join(map(str, model.hidden))} hidden" if model.kind == "mlp" else (
        f"{model.layers} blocks of width {model.width}, sequences of {workload.inputs} tokens")
    console.print(f"{model.kind} of {words}, AdamW, batch {workload.batch}: one process {alone:.1f} ms, divided by "
                  f"{RANKS} = {alone / RANKS:.1f} ms")
    show_grid(console, [STAGES[row["stage"]].title for row in rows], [
        Column("ms per\nstep", [f"{1e3 * row['step_seconds']:.1f}" for row in rows]),
        Column("ratio", [f"{row['ratio']:.3f}" for row in rows]),
        Column("range of\nratios", [" … ".join(f"{end:.3f}" for end in row["ratio_range"]) for row in rows])], "stage")
