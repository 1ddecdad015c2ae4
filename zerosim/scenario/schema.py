"""A scenario of training, and its rows: each variant or stage becomes a `Row` with checks of its own.

Rows used to be a name and a position; then a row that did not fit took another row's check.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, count
from typing import Any

import numpy as np

from zerosim.core.parts import Name, Named
from zerosim.core.parts.loading import Declared
from zerosim.core.sharding import Directions
from zerosim.scenario.collective import CollectiveScenario
from zerosim.scenario.conditions import refuse
from zerosim.scenario.reading import dotted, keys
from zerosim.scenario.sections import Check, ModelKeys, Parallel, Sections, Train, Variant
from zerosim.stages import STAGES


@dataclass(frozen=True, eq=False)
class Row:
    """One line of a comparison. Rows are identified by themselves, never by their position."""

    name: str
    """The scenario's name of the row, or one made from its stage and its keys."""
    stage_key: Name
    """A key of the table of stages, or a user's stage."""
    directions: Directions
    """The ranks that train one copy of the model, and the number of ranks with micro-batches of their own, `data`."""
    ranks_per_host: int
    """The number of ranks on a host; 0: that of the real hosts."""
    memory_limit_mb: int
    keys: ModelKeys
    train: Train
    parallel: Parallel
    """The section with the row's own keys; its `stages` names this row's alone."""
    layers: tuple[tuple[int, ...], ...]
    """The layers of each unit."""
    check: Check
    """Its checks; a key with a number for each row has this row's alone."""


@dataclass(frozen=True)
class Scenario(Sections):
    """A whole scenario.

    >>> Scenario(train=Train(optimizer="adamw")).train.weight_decay
    0.01

    Raises `ScenarioError` if two keys contradict each other.
    """

    def __post_init__(self) -> None:
        refuse(self, self.names)
        for index, fault in enumerate(self.fault):
            if problem := fault.problem(self.train.steps, self.world.ranks):
                key, words = problem
                raise self.origin.error(
                    f"fault[{index}].{words}", ("fault", index, key), ("fault", index, "kind"))

    @cached_property
    def rows(self) -> "list[Row]":
        """The rows in the order of training: each variant or, without any, each stage.

        >>> [(row.stage_key, row.check.volumes) for row in Scenario(
        ...     parallel=Parallel(stages=("ddp", "zero3")), check=Check(volumes=(2, 3))).rows]
        [('ddp', (2,)), ('zero3', (3,))]
        """
        parallels = [variant.applied(self.parallel) for variant in self.variant] or [
            dataclasses.replace(self.parallel, stages=(stage,)) for stage in self.parallel.stages]
        rows, world = [], self.world
        for number, (name, parallel) in enumerate(zip(self.names, parallels, strict=True)):
            (stage,), ranks = parallel.stages, world.ranks // parallel.directions.places
            rows.append(Row(
                name, stage, dataclasses.replace(parallel.directions, data=ranks), world.ranks_per_host,
                world.memory_limit_mb, self.model, self.train, parallel,
                self.model.units_of(parallel.units), self.check.of_row(number)))
        return rows

    @property
    def names(self) -> list[str]:
        """The name of each row, all different: the variant's, or its stage's title and its keys.

        >>> from zerosim.scenario.sections import Variant
        >>> Scenario(variant=(Variant("a"), Variant("a"), Variant(stage="ddp"))).names
        ['a', 'a (2)', 'DDP']
        """
        names: list[str] = []
        for title in [variant.title for variant in self.variant] or [
                STAGES[stage].title for stage in self.parallel.stages]:
            alike = chain([title], (f"{title} ({number})" for number in count(2)))
            names.append(next(name for name in alike if name not in names))
        return names


def resolved(scenario: "Scenario | CollectiveScenario") -> dict[str, Any]:
    """Every key with its value, defaults filled in, in JSON's own types.

    >>> resolved(Scenario())["data"]
    {'source': 'digits'}
    """
    return {name: plain(getattr(scenario, name), str) for name in keys(type(scenario))}


def plain(value: Any, part: Callable[[Any], Any]) -> Any:
    """A value in TOML's and JSON's own types: tuples as lists, sections as tables; `part` makes one of users' parts."""
    match value:
        case Named():
            return part(value)
        case Variant():
            return {"name": value.name, "stage": plain(value.stage, part), **plain(value.keys_set, part)}
        case tuple() | list():
            return [plain(element, part) for element in value]
        case np.generic():
            return value.item()
        case Mapping():
            return {key: plain(element, part) for key, element in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, Declared):
        table = {key: plain(getattr(value, key), part) for key in keys(type(value))}
        return {**table, **plain(getattr(value, "own", {}), part)}
    return value


def parts_in(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str, Named]]:
    """The users' parts in a scenario, with the keys that name them."""
    match plain(value, lambda part: part):
        case Named() as part:
            yield dotted(path), part
        case dict(table):
            for key, element in table.items():
                yield from parts_in(element, (*path, key))
        case list(elements):
            for index, element in enumerate(elements):
                yield from parts_in(element, (*path, index))


def python_run(scenario: Any) -> list[str]:
    """A line that names the Python files that a scenario runs, if any."""
    parts = {f"{part} (sha256 {part.sha256[:8]}…)": None for _, part in parts_in(scenario)}
    return [f"runs your Python code: {', '.join(parts)}"] if parts else []
