"""Benchmarks: ratios within one run, because absolute times say more about the machine than about the program.

`step`: 2 ranks train a 784-1024-1024-1024-10 MLP with AdamW at a global batch of 256. A round times one process that
takes the whole batch alone (rank 0, while the other waits), then one step of each stage by both ranks. The ratio is
a stage's time against half of what the one process needed in the same round: 1 would be perfect scaling.
"""

import itertools
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from zerosim.allocation import allocate
from zerosim.comm import Communicator, Payload, Reduction
from zerosim.instruments.traffic import Traffic
from zerosim.recipe import Recipe, prepare
from zerosim.scenario import Model, Parallel, Scenario, Train, World
from zerosim.scenario.dataset import Dataset
from zerosim.stages import STAGES
from zerosim.worlds.objects import broadcast_object, gather_objects

RANKS = 2
BATCH = 256
WIDTHS = (784, 1024, 1024, 1024, 10)
WARM_UP = 2


@dataclass(frozen=True)
class Timing:
    """One stage's steps, a figure for each round."""

    stage: str
    seconds: list[float]
    alone_seconds: list[float]

    @property
    def ratios(self) -> list[float]:
        """Against half of what one process needs for the whole batch."""
        pairs = zip(self.seconds, self.alone_seconds, strict=True)
        return [seconds / (alone / RANKS) for seconds, alone in pairs]

    def document(self) -> dict[str, Any]:
        return {
            "stage": self.stage,
            "step_seconds": statistics.median(self.seconds),
            "alone_seconds": statistics.median(self.alone_seconds),
            "ratio": statistics.median(self.ratios),
            "ratio_range": [min(self.ratios), max(self.ratios)],
        }


class OneRank:
    """The world of a process that trains alone: there is nobody to talk to."""

    rank = 0
    size = 1

    def exchange(
        self, outgoing: Payload, *, to: int, into: Payload, source: int, reduce: Reduction | None = None
    ) -> None:
        raise AssertionError("a ring of one rank exchanges nothing")

    def send(self, outgoing: Payload, *, to: int) -> None:
        raise AssertionError("a ring of one rank sends nothing")

    def recv(self, *, into: Payload, source: int, reduce: Reduction | None = None) -> None:
        raise AssertionError("a ring of one rank receives nothing")


def time_steps(comm: Communicator, rounds: int) -> list[Timing] | None:
    """The timings of every stage on rank 0, None on the other rank."""
    with threadpool_limits(1):
        alone = steps(OneRank(), "ddp")
        together = {name: steps(comm, name) for name in STAGES}
        alone_seconds: list[float] = []
        seconds: dict[str, list[float]] = {name: [] for name in STAGES}
        for _ in range(WARM_UP + rounds):
            if comm.rank == 0:
                alone_seconds.append(timed(alone))
            for name, step in together.items():
                broadcast_object(comm, None)
                slowest = gather_objects(comm, timed(step))
                if slowest is not None:
                    seconds[name].append(max(slowest))
    if comm.rank != 0:
        return None
    return [
        Timing(name, seconds[name][WARM_UP:], alone_seconds[WARM_UP:]) for name in STAGES
    ]


def timed(step: Iterator[None]) -> float:
    started = time.perf_counter()
    next(step)
    return time.perf_counter() - started


def steps(comm: Communicator, name: str) -> Iterator[None]:
    """One training step of stage `name` each time the next item is asked for."""
    recipe = recipe_of(comm.size, name)
    replica = recipe.replica(Traffic(comm), allocate)
    stage = STAGES[name]
    stage.keep(replica, recipe.initial)
    (batch,) = recipe.batches(comm.rank)
    for number in itertools.count(1):
        stage.step(replica, replace(batch, step=number))
        yield


def recipe_of(ranks: int, stage: str) -> Recipe:
    """The whole batch in as many micro-batches as there are ranks; of random pixels."""
    random = np.random.default_rng(0)
    x = random.random((BATCH, WIDTHS[0]), np.float32)
    y = random.integers(0, WIDTHS[-1], BATCH)
    scenario = Scenario(
        world=World(ranks),
        model=Model(hidden=WIDTHS[1:-1]),
        train=Train(steps=1, micro_batch=BATCH // ranks, micro_batches=ranks, optimizer="adamw"),
        parallel=Parallel(stages=(stage,)),
    )
    return prepare(scenario, Dataset(x, y, None, None, WIDTHS[-1]))
