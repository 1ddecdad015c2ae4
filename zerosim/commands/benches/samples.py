"""Measurements by turns, so that a disturbance affects all tasks, and their medians and ratios."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from threadpoolctl import threadpool_limits

from zerosim.core.comm import Communicator
from zerosim.observe.resident import keep_freed
from zerosim.worlds.objects import broadcast_object, gather_objects

Measured = TypeVar("Measured")
SampleRow = dict[str, Any]
"""The figures of a task as JSON types."""
WARM_UP = 2
"""Rounds before those that count; they also say how many calls make a turn."""
TURN_SECONDS, MOST_CALLS = 0.02, 1000
"""The least time of a turn, and the most calls of a task in it."""


def sample(names: Mapping[str, Any], rounds: Mapping[str, Sequence[float]], *, shared_by: int = 1) -> SampleRow:
    """The names of a task, and the medians of its two figures; their ratio is taken within each round.

    The second figure is divided among `shared_by` ranks before the comparison.

    >>> sample({"what": "traced"}, {"with_seconds": [3.0, 8.0, 1.0], "without_seconds": [2.0, 8.0, 2.0]})
    {'what': 'traced', 'with_seconds': 3.0, 'without_seconds': 2.0, 'ratio': 1.0, 'ratio_range': [0.5, 1.5]}
    """
    ratios = [one * shared_by / other for one, other in zip(*rounds.values(), strict=True)]
    medians = {name: statistics.median(values) for name, values in rounds.items()}
    return {**names, **medians, "ratio": statistics.median(ratios), "ratio_range": [min(ratios), max(ratios)]}


def on_rank_0(comm: Communicator, measure: Callable[..., Measured], *arguments: Any) -> Measured | None:
    """The result on rank 0, with one thread for matrix products and freed memory kept; None on other ranks."""
    keep_freed()
    with threadpool_limits(1):
        measured = measure(comm, *arguments)
    return measured if comm.rank == 0 else None


def by_turns(comm: Communicator, rounds: int, tasks: Mapping[str, Callable[[], object]]) -> dict[str, list[float]]:
    """The seconds of a call of each task, round by round: on rank 0 those of the slowest rank, on others their own.

    Ranks begin each turn together; every second round is reversed.
    """
    seconds, calls = {name: list[float]() for name in tasks}, dict.fromkeys(tasks, 1)
    for number in range(-WARM_UP, rounds):
        for name in list(tasks)[:: 1 if number % 2 else -1]:
            broadcast_object(comm, gather_objects(comm, None))
            began = time.perf_counter()
            for _ in range(calls[name]):
                tasks[name]()
            own = (time.perf_counter() - began) / calls[name]
            slowest = max(gather_objects(comm, own) or [own])
            if number < 0:
                calls[name] = broadcast_object(comm, max(1, min(MOST_CALLS, int(TURN_SECONDS / slowest))))
            else:
                seconds[name].append(slowest)
    return seconds
