"""The time of a training step by kind: matrix products, other operations, the update, collectives, and the rest.

    products           operations that multiply matrices, biases included
    attention          its products and its softmax
    other operations   norms, activations, residuals, losses
    update             the optimizer
    collectives        reduce-scatter, all-gather and others: copying, reducing, waiting for other ranks
    rest               Python between them, memory, casts
"""

import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from zerosim.allocation import allocate
from zerosim.comm import Communicator
from zerosim.commands.benches.samples import Sample, by_turns, seconds_of
from zerosim.commands.benches.timings import Workload, batches_of
from zerosim.instruments.observed import Observed
from zerosim.stages import STAGES
from zerosim.training.build import initial_weights, replica

PRODUCTS, ATTENTION, OTHERS, UPDATE, COLLECTIVES, REST = KINDS = (
    "products", "attention", "other operations", "update", "collectives", "rest")


class Spent:
    """Seconds by kind, from the operations of a tape, and as an instrument from updates and collectives.

    >>> spent = Spent()
    >>> spent.perform(None, max, 1, 2), [*spent.seconds]
    (2, ['other operations'])
    """

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._began: list[float] = []

    def perform(self, step: Any, function: Callable[..., Any], *arrays: Any, **named: Any) -> Any:
        """The result of an operation's forward or backward."""
        kind = kind_of(step)
        began = time.perf_counter()
        try:
            return function(*arrays, **named)
        finally:
            self.seconds[kind] += time.perf_counter() - began

    def computing(self, name: str, owner: str) -> None:
        if name == UPDATE:
            self.began(name, owner)

    def computed(self, name: str, owner: str) -> None:
        if name == UPDATE:
            self.seconds[UPDATE] += time.perf_counter() - self._began.pop()

    def began(self, name: str, owner: str) -> None:
        self._began.append(time.perf_counter())

    def ended(self, name: str, owner: str) -> None:
        self.seconds[COLLECTIVES] += time.perf_counter() - self._began.pop()


def kind_of(step: Any) -> str:
    """The kind of an operation; a loss has no step."""
    if step is None or step.instruction.operation.multiplications is None:
        return OTHERS
    return ATTENTION if ATTENTION in step.instruction.operation.name else PRODUCTS


def time_spent(comm: Communicator, rounds: int, workload: Workload) -> list[Sample]:
    """The times of a step of every stage by kind."""
    tasks = {name: partial(next, watched(comm, name, workload)) for name in STAGES}
    return [Sample({"stage": name}, by_kind(found)) for name, found in by_turns(comm, rounds, tasks).items()]


def watched(comm: Communicator, stage: str, workload: Workload) -> Iterator[Mapping[str, float]]:
    """The seconds by kind of each step."""
    spent, batches = Spent(), batches_of(comm.size, stage, workload)
    mine = replica(batches.config, Observed(comm, spent), allocate, perform=spent.perform)
    mine.begin(initial_weights(batches.config))
    (batch,) = batches.of_rank(comm.rank)
    for number in itertools.count(1):
        spent.seconds.clear()
        whole = seconds_of(partial(batches.config.stage.step, mine, replace(batch, step=number)))
        yield {**spent.seconds, REST: whole - sum(spent.seconds.values())}


def by_kind(rounds: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """The seconds of the whole step and of each kind, round by round.

    >>> found = by_kind([{"rest": 1.0}, {"rest": 2.0, "other operations": 1.0}])
    >>> found["step_seconds"], found["rest_seconds"], found["other_operations_seconds"]
    ([1.0, 3.0], [1.0, 2.0], [0.0, 1.0])
    """
    whole = {"step_seconds": [sum(each.values()) for each in rounds]}
    return whole | {seconds_key(kind): [each.get(kind, 0.0) for each in rounds] for kind in KINDS}


def seconds_key(kind: str) -> str:
    """The name of a kind's figure.

    >>> seconds_key(OTHERS)
    'other_operations_seconds'
    """
    return f"{kind.replace(' ', '_')}_seconds"
