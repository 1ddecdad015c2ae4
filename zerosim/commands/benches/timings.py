"""Benchmarks as ratios within one run, because absolute times depend more on the machine than on the program.

`step` and `ledger` train on 2 ranks with AdamW, in rounds: a 784-1024-1024-1024-10 MLP with a global batch of 256, or
a transformer of GPT-2's shape with 4 blocks, width 256 and 8 heads, on 16 sequences of 128 tokens.

    step      a round times one process with the whole batch (rank 0, while the other rank waits), then one step of
              each stage on both ranks; the ratio is a stage's time over half of the one process's time: 1 would be
              perfect scaling
    ledger    a round times one step of each stage with its bytes and messages counted and one without; their ratio.
              Also one that is traced, and one with checksums, each over the counted one. Steps vary by more than
              the cost of a trace, so calls of the tracer and of the memory ledger are also timed within a traced
              step: their ratio is that of the step to the step without them
"""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from zerosim.allocation import allocate
from zerosim.comm import Communicator, among
from zerosim.commands.benches.samples import Sample, by_turns, overhead, slower, timed
from zerosim.data import Dataset
from zerosim.instruments.memory import Ledger
from zerosim.instruments.observed import Observed, ObservedAllocator
from zerosim.instruments.trace import Tracer
from zerosim.instruments.traffic import Traffic
from zerosim.scenario import ModelKeys, Parallel, Scenario, Train, WorldKeys
from zerosim.stages import STAGES
from zerosim.stages.replica import Replica
from zerosim.training.batches import Batches
from zerosim.training.build import initial_weights, replica
from zerosim.training.experiment import prepare
from zerosim.worlds.checked import Checked
from zerosim.worlds.objects import gather_objects

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


def time_ledgers(comm: Communicator, rounds: int, workload: Workload) -> list[Sample]:
    """The cost of counting, tracing and checksums for every stage."""
    return [sample for name in STAGES for sample in ledgers_of(comm, name, rounds, workload)]


def ledgers_of(comm: Communicator, stage: str, rounds: int, workload: Workload) -> list[Sample]:
    measured = {
        "traced": traced_steps(Tracer(comm.rank), Ledger(), comm, stage, workload),
        "checked": steps(counted(Checked(comm), stage, workload)), "counted": steps(counted(comm, stage, workload)),
        "plain": steps(plain(comm, stage, workload))}
    calls = ClockedComm(Tracer(comm.rank)), ClockedComm(Ledger())
    by_call = traced_steps(*calls, comm, stage, workload)
    tasks: dict[str, Callable[[], Any]] = {name: partial(slower, comm, each) for name, each in measured.items()}
    found = by_turns(comm, rounds, tasks | {"calls": partial(with_and_without, comm, by_call, calls)})
    return [
        overhead(stage, "counted", found["counted"], found["plain"]),
        overhead(stage, "traced", found["traced"], found["counted"]),
        overhead(stage, "calls of the trace", *zip(*found["calls"], strict=True)),
        overhead(stage, "with checksums", found["checked"], found["counted"]),
    ]


class ClockedComm:
    """An instrument with another one's methods, which adds up their processor seconds.

    >>> from zerosim.instruments.traffic import Traffic
    >>> clocked = ClockedComm(Traffic())
    >>> clocked.sent(np.ones(2), 1)
    >>> clocked.seconds > 0, hasattr(clocked, "taken")
    (True, False)
    """

    def __init__(self, instrument: Any) -> None:
        self.seconds = 0.0
        self._instrument = instrument

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._instrument, name)

        def call(*args: Any) -> Any:
            started = time.thread_time()
            found = method(*args)
            self.seconds += time.thread_time() - started
            return found

        return call


def with_and_without(comm: Communicator, step: Iterator[None], calls: Sequence[ClockedComm]) -> tuple[float, float]:
    """The processor seconds of a step with and without `calls`, on the rank that waited less.

    Waiting ranks poll, so waiting uses their core as well. The result is on rank 0; the other rank gets 1 and 1.
    """
    before, started = sum(each.seconds for each in calls), time.process_time()
    next(step)
    seconds = time.process_time() - started
    within = sum(each.seconds for each in calls) - before
    everyone: list[tuple[float, float]] = gather_objects(comm, (seconds, seconds - within)) or [(1.0, 1.0)]
    return min(everyone)


def plain(comm: Communicator, stage: str, workload: Workload) -> tuple[Batches, Replica]:
    """The state of a rank without instruments."""
    batches = batches_of(comm.size, stage, workload)
    return batches, replace(replica(batches.config, Observed(comm), allocate), comm=comm)


def counted(comm: Communicator, stage: str, workload: Workload) -> tuple[Batches, Replica]:
    """The state of a rank as in a run, with both ledgers."""
    batches = batches_of(comm.size, stage, workload)
    return batches, replica(batches.config, Observed(comm, Traffic()), ObservedAllocator(allocate, Ledger()))


def traced_steps(
    tracer: Tracer | ClockedComm, ledger: Ledger | ClockedComm, comm: Communicator, stage: str, workload: Workload
) -> Iterator[None]:
    """The steps of a rank as in a run in which every step is traced."""
    batches = batches_of(comm.size, stage, workload)
    observed = Observed(comm, Traffic(), tracer)
    for_each = steps((batches, replica(batches.config, observed, ObservedAllocator(allocate, ledger))))
    while True:
        tracer.begin()
        ledger.begin_curve()
        next(for_each)
        replace(tracer.end(1), memory=ledger.curve_so_far())
        yield


def steps(trained: tuple[Batches, Replica]) -> Iterator[None]:
    """An iterator that trains one step per item."""
    batches, mine = trained
    mine.begin(initial_weights(batches.config))
    (batch,) = batches.of_rank(mine.comm.rank)
    for number in itertools.count(1):
        batches.config.stage.step(mine, replace(batch, step=number))
        yield


def batches_of(ranks: int, stage: str, workload: Workload) -> Batches:
    """The whole batch, with one micro-batch per rank."""
    scenario = Scenario(
        world=WorldKeys(ranks),
        model=workload.model,
        train=Train(steps=1, micro_batch=workload.batch // ranks, micro_batches=ranks, optimizer="adamw"),
        parallel=Parallel(stages=(stage,)),
    )
    experiment = prepare(scenario, workload.dataset())
    return Batches(experiment.rows[0], experiment.dataset)
