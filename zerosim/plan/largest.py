"""The largest value of a key with which a model can be trained: the longest sequence, the most layers.

A value is possible if some row fits, and is in time if the question has a date. Values double from the scenario's own,
or halve if that is not possible. Between the last two the middle is tried repeatedly, down to eighths of a power of
two: ranks that share a sequence or the layers must divide them, so a finer answer would be one of few layouts.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from zerosim.core.errors import UsageError, ZerosimError
from zerosim.plan.planning import Plan
from zerosim.plan.questions import Largest, Question
from zerosim.plan.reading import numbers_of_ranks, read_plan, scenario_of
from zerosim.plan.search import read_search
from zerosim.scenario import Scenario, Source
from zerosim.scenario.reading import keys as keys_of
from zerosim.scenario.reading import keys_in, nearest

PARTS = 8
"""The parts of a power of two in which values grow at last."""


def reader(search: str | int | None, key: str | None) -> Callable[..., Plan]:
    """The function that reads a plan: of rows or of layouts, as they are or with the largest value of a key."""
    read = read_plan if search is None else partial(read_search, most=search)
    attempt = read if search is None else partial(read_search, likely=[])
    return read if key is None else partial(read_largest, read, attempt, key)


def read_largest(
    read: Callable[..., Plan], attempt: Callable[..., Plan], key: str, path: Source, ranks: Sequence[int],
    overrides: Mapping[str, Any], sweep: Mapping[str, Sequence[Any]], *, question: Question | None = None,
    python: bool = True, say: Callable[[str], None] = lambda words: None,
) -> Plan:
    """The plan with the largest possible value of `key` on each number of ranks, by `read`, such as `read_search`.

    `attempt` reads a plan that says whether a value is possible. The other arguments are those of `read_plan`. Raises
    `UsageError` for a key without a whole number above 0.
    """
    scenario = scenario_of(path, overrides, python=python)
    first = first_value(scenario, key, sweep)
    plans = []
    for count in numbers_of_ranks(ranks) or [scenario.world.ranks]:
        def at(value: int, count: int = count, read: Callable[..., Plan] = attempt) -> Plan:
            return read(path, [count], overrides, {**sweep, key: [value]}, question=question, python=python, say=say)

        trials = Trials(at, lambda value, why: say(f"{key} = {value:,}: {why or 'possible'}"))
        largest(trials, first)
        found = Largest(key, count, trials.value, trials.above, trials.why)
        best = trials.plan if attempt is read else at(trials.value or first, count, read)
        plans.append(replace(best, largest=(found,)))
    return replace(
        plans[-1], rows=tuple(row for each in plans for row in each.rows),
        search="; ".join(each.search for each in plans if each.search),
        largest=tuple(found for each in plans for found in each.largest))


def first_value(scenario: Scenario, key: str, sweep: Mapping[str, Sequence[Any]]) -> int:
    """The scenario's value of `key`, which must be a whole number above 0 that is not swept."""
    keys = {f"{section}.{name}": getattr(getattr(scenario, section), name)
            for section, kind in keys_of(type(scenario)).items() if section not in ("variant", "fault")
            for name in keys_in(kind)}
    allowed = [name for name, value in keys.items() if type(value) is int and value > 0]
    if key in allowed and key not in sweep:
        return int(keys[key])
    found = "it is swept" if key in sweep else f"found {keys[key]!r}" if key in keys else "no scenario has this key"
    near = None if key in keys else nearest(key, allowed)
    raise UsageError(f"--largest {key}: {found}; name a key with a whole number from 1 that is not swept, "
                     f"{f'perhaps {near}' if near else 'such as model.sequence or model.layers'}")


@dataclass
class Trials:
    """The values tried so far: the largest possible one with its plan, and the least impossible one."""

    at: Callable[[int], Plan]
    note: Callable[[int, str], None] = lambda value, why: None
    """Is called with each value, and why it is not possible."""
    value: int = 0
    above: int = 0
    why: str = ""
    _plan: Plan | None = None

    @property
    def plan(self) -> Plan:
        """The plan of the largest possible value, or else of the first one."""
        assert self._plan is not None
        return self._plan

    def possible(self, value: int) -> bool:
        """Whether a value is possible. Raises the error of the first one; a later one with an error is not possible."""
        try:
            found = self.at(value)
            why = impossible(found)
        except ZerosimError as error:
            if self._plan is None:
                raise
            found, why = self._plan, f"it is refused: {error}"
        self.note(value, why)
        if why:
            self.above, self.why, self._plan = value, why, self._plan or found
        else:
            self.value, self._plan = value, found
        return not why


def largest(trials: Trials, first: int) -> None:
    """Try values from `first` on, until none is left between the largest possible one and the next multiple.

    >>> class UpTo(Trials):
    ...     def possible(self, value):
    ...         self.value, self.above = (value, self.above) if value <= 1234 else (self.value, value)
    ...         return value <= 1234
    >>> found = UpTo(lambda value: None)
    >>> largest(found, 100)
    >>> found.value, found.above
    (1216, 1280)
    """
    value = first
    if trials.possible(first):
        while trials.possible(2 * trials.value):
            pass
    else:
        while value > 1 and not trials.possible(value := value // 2):
            pass
    step = max((1 << trials.value.bit_length()) // (2 * PARTS), 1)
    while trials.value and trials.above - trials.value > step:
        middle = (trials.value + trials.above) // 2 // step * step
        trials.possible(middle if middle > trials.value else trials.value + step)


def impossible(plan: Plan) -> str:
    """The reason why no row of a plan answers its question; empty if one does."""
    if plan.best is None:
        return "nothing fits"
    in_time = plan.answers is None or plan.answers.fewest is not None
    return "" if in_time else "no row that fits is in time"
