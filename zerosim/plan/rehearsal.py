"""One rank's step on shapes alone: the stage's own text, with a memory ledger, of any model, without its memory.

The ranks of a step do the same, so one of them stands for all: what it sends goes nowhere, and what it receives is
there. Optimizers are left out: they have no arrays that outlive their piece of a unit.
"""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from zerosim.allocation import Kind
from zerosim.comm import Payload, Reduction
from zerosim.instruments.memory import Ledger
from zerosim.instruments.observed import Observed, ObservedAllocator
from zerosim.optim.update import UpdateRule
from zerosim.payloads.extents import Extent
from zerosim.stages.replica import Batch, Replica
from zerosim.training.build import replica
from zerosim.training.config import Config


@cache
def rehearsed(config: Config) -> dict[Kind, int]:
    """The most bytes of each kind that are alive within a step, after the first.

    >>> from zerosim.models.units import Task
    >>> from zerosim.scenario.schema import Parallel, Scenario
    >>> from zerosim.training.config import configured
    >>> (row,) = Scenario(parallel=Parallel(stages=("zero3",))).rows
    >>> peak = rehearsed(configured(row, Task(64, 10, "cross_entropy")))
    >>> peak["parameters"], peak["optimizer"]                   # a quarter of 8,970 weights, and 64 × 64 + 64 of them
    (25620, 17960)
    """
    ledger = Ledger()
    mine = on_shapes(config, ledger)
    batch = first_batch(config)
    config.stage.step(mine, batch)
    ledger.begin_peak()
    config.stage.step(mine, batch)
    return dict(ledger.peak)


def on_shapes(config: Config, ledger: Ledger) -> Replica:
    """Rank 0's replica of a row, its states begun."""
    mine = replica(config, Observed(Nowhere(config.ranks)), ObservedAllocator(extent, ledger))
    mine = replace(mine, rule=Unchanging(mine.rule))
    if config.addition.collective is None:
        mine = replace(mine, collectives=replace(mine.collectives, reduce_scatter=first_of_all))
    mine.begin(lambda unit: Extent(unit.count, np.float32))
    return mine


def first_batch(config: Config) -> Batch:
    """Micro-batches with the shapes of the model's data, and targets of zeros."""
    samples, task = config.row.train.micro_batch, config.model.task
    inputs = np.zeros((samples, task.inputs), np.int64) if task.tokens else Extent((samples, task.inputs), config.precision.weights)
    ...
    return Batch(1, [], [], config.samples, 0)


class Nowhere:
    """Rank 0's communicator where nobody else is: every message has gone, and every answer has come."""

    def __init__(self, size: int) -> None:
        self.rank = 0
        self.size = size

    def exchange(
        self, outgoing: Payload, *, to: int, into: Payload, source: int, reduce: Reduction | None = None
    ) -> None: ...
    def send(self, outgoing: Payload, *, to: int) -> None: ...
    def recv(self, *, into: Payload, source: int, reduce: Reduction | None = None) -> None: ...
