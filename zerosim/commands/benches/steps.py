"""Steps of each stage on 2 ranks as ratios within one run: absolute times depend more on the machine than the program.

Each round times one process with the whole batch (rank 0, while the other rank waits), and one step of each stage on
both ranks. The ratio is a stage's time over half of the one process's time: 1 would be perfect scaling.
"""

import argparse
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console

from zerosim.commands.benches.samples import SampleRow, by_turns, on_rank_0, sample
from zerosim.commands.output import standard_output
from zerosim.core.allocation import allocate
from zerosim.core.comm import Communicator, among
from zerosim.core.errors import UsageError
from zerosim.observe.observed import Observed
from zerosim.scenario import Data, ModelKeys, Parallel, Scenario, Train, WorldKeys
from zerosim.scenario.data import load_dataset
from zerosim.show.grid import Column, show_grid
from zerosim.stages import STAGES
from zerosim.training.build import initial_weights, replica
from zerosim.training.experiment import prepare
from zerosim.worlds.mpi import MpiWorld
from zerosim.worlds.mpi_communicator import MpiCommunicator

RANKS = 2


def workload(model: ModelKeys, source: str, samples: int) -> Scenario:
    """A step on so many samples of shipped data, by AdamW."""
    return Scenario(world=WorldKeys(RANKS), data=Data(source), model=model, train=Train(
        steps=1, micro_batch=samples // RANKS, micro_batches=RANKS, optimizer="adamw"))


WORKLOADS = {
    "mlp": workload(ModelKeys(hidden=(1024, 1024, 1024)), "digits", 256),
    "transformer": workload(ModelKeys(kind="transformer", layers=4, width=256, heads=8, sequence=128), "text", 16),
}


def bench(arguments: argparse.Namespace, comm: MpiCommunicator) -> dict[str, Any] | None:
    """Time steps of every stage; None on ranks other than 0."""
    if comm.size != RANKS:
        raise UsageError(f"bench step measures {RANKS} ranks and the launcher started {comm.size}: run it with mpirun "
                         f"-n {RANKS}, or without")
    scenario = WORKLOADS[arguments.model]
    (rows,) = MpiWorld(comm).run(lambda comm: on_rank_0(comm, time_steps, arguments.rounds, scenario))
    if rows is None:
        return None
    show_steps(standard_output(arguments), rows, scenario)
    return {"stages": rows}


def time_steps(comm: Communicator, rounds: int, scenario: Scenario) -> list[SampleRow]:
    """The times of a step of every stage."""
    tasks = {stage: stepping(comm, stage, scenario) for stage in STAGES}
    tasks["alone"] = stepping(among(comm, range(1)), "ddp", scenario) if comm.rank == 0 else lambda: None
    seconds = by_turns(comm, rounds, tasks)
    return [sample({"stage": stage}, {"step_seconds": seconds[stage], "alone_seconds": seconds["alone"]},
                   shared_by=RANKS) for stage in STAGES]


def stepping(comm: Communicator, stage: str, scenario: Scenario) -> Callable[[], None]:
    """A function that trains one more step on this rank, with one micro-batch per rank and without instruments."""
    train = scenario.train
    experiment = prepare(replace(
        scenario, world=WorldKeys(comm.size), parallel=Parallel((stage,)), train=replace(
            train, micro_batch=train.micro_batch * RANKS // comm.size, micro_batches=comm.size)),
        load_dataset(scenario))
    (config,), numbers = experiment.rows, itertools.count(1)
    own = replace(replica(config, Observed(comm), allocate), comm=comm)
    own.begin(initial_weights(config))
    (batch,) = experiment.of_rank(config, comm.rank)

    def step() -> None:
        config.stage.step(own, replace(batch, step=next(numbers)))

    return step


def show_steps(console: Console, rows: Sequence[SampleRow], scenario: Scenario) -> None:
    """Print the times of every stage's step, and the workload above."""
    alone, model = 1e3 * rows[0]["alone_seconds"], prepare(scenario, load_dataset(scenario)).rows[0].model.words
    console.print(f"{model}, AdamW, batch {scenario.train.micro_batch * RANKS}: one process {alone:.1f} ms, divided by "
                  f"{RANKS} = {alone / RANKS:.1f} ms")
    show_grid(console, [STAGES[row["stage"]].title for row in rows], [
        Column("ms per\nstep", [f"{1e3 * row['step_seconds']:.1f}" for row in rows]),
        Column("ratio", [f"{row['ratio']:.3f}" for row in rows]),
        Column("range of\nratios", [" … ".join(f"{end:.3f}" for end in row["ratio_range"]) for row in rows])], "stage")
