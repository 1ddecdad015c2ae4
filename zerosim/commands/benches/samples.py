"""The samples of all benches: how rounds are measured, what was measured, and the ratio of two figures."""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from threadpoolctl import threadpool_limits

from zerosim.core.comm import Communicator
from zerosim.observe.resident import keep_freed
from zerosim.worlds.objects import broadcast_object, gather_objects

Found = TypeVar("Found")

WARM_UP = 2
"""Rounds before those that count."""

SampleRow = dict[str, Any]
"""A sample's document, a row of a table and of `zerosim.bench/1`."""


@dataclass(frozen=True)
class Sample:
    """One measured task: its names, its figures round by round, and figures of all rounds.

    Two figures by rounds are compared: they were measured by turns, so their ratio is taken within each round. Names of
    figures end with their unit, such as `step_seconds`.

    >>> Sample({"what": "traced"}, {"with_seconds": [3.0, 8.0, 1.0], "without_seconds": [2.0, 8.0, 2.0]}).document()
    {'what': 'traced', 'with_seconds': 3.0, 'without_seconds': 2.0, 'ratio': 1.0, 'ratio_range': [0.5, 1.5]}
    """

    names: Mapping[str, Any]
    rounds: Mapping[str, Sequence[float]] = field(default_factory=dict)
    figures: Mapping[str, Any] = field(default_factory=dict)
    shared_by: int = 1
    """The ranks among which the second figure is divided before the comparison."""

    @property
    def ratios(self) -> list[float]:
        """The first figure over the second, in every round; empty unless there are two."""
        if len(self.rounds) != 2:
            return []
        return [one / (other / self.shared_by) for one, other in zip(*self.rounds.values(), strict=True)]

    def document(self) -> SampleRow:
        """The sample as JSON types: medians of all rounds; of ratios also the least and the greatest."""
        medians = {name: statistics.median(values) for name, values in self.rounds.items()}
        ratios = self.ratios
        compared = {"ratio": statistics.median(ratios), "ratio_range": [min(ratios), max(ratios)]} if ratios else {}
        return {**self.names, **medians, **self.figures, **compared}


def on_rank_0(comm: Communicator, measure: Callable[..., Found], *arguments: Any) -> Found | None:
    """The result on rank 0, with one thread for matrix products and freed memory kept; None on other ranks."""
    keep_freed()
    with threadpool_limits(1):
        found = measure(comm, *arguments)
    return found if comm.rank == 0 else None


def by_turns(comm: Communicator, rounds: int, tasks: Mapping[str, Callable[[], Found]]) -> dict[str, list[Found]]:
    """The results of all tasks, round by round, so that a disturbance affects all; every second round is reversed.

    Ranks begin each task together.
    """
    found: dict[str, list[Found]] = {name: [] for name in tasks}
    for number in range(WARM_UP + rounds):
        for name in list(tasks)[:: 1 if number % 2 else -1]:
            broadcast_object(comm, None)
            found[name].append(tasks[name]())
    return {name: each[WARM_UP:] for name, each in found.items()}


def slower(comm: Communicator, step: Iterator[None]) -> float:
    """The seconds of a step on the slower rank; on rank 0, and 0 on the other rank."""
    everyone: list[float] = gather_objects(comm, timed(step)) or [0.0]
    return max(everyone)


def timed(step: Iterator[None]) -> float:
    """The seconds of a step."""
    started = time.perf_counter()
    next(step)
    return time.perf_counter() - started
