"""Advice: the changes to a scenario that make a row fit; each is planned before it is named."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import reduce
from typing import Any, NamedTuple

from zerosim.scenario.schema import Scenario
from zerosim.words import joined

SHORTEST = 256
"""Sequences are not shortened below this number of tokens."""


class Change(NamedTuple):
    """A key of a scenario and a new value."""

    section: str
    key: str
    value: Any

    @property
    def words(self) -> str:
        return "Stage III" if self.key == "stages" else f"{self.section}.{self.key} = {json.dumps(self.value)}"

    def made(self, scenario: Scenario) -> Scenario:
        changed = replace(getattr(scenario, self.section), **{self.key: self.value})
        return replace(scenario, **{self.section: changed})


def advice(scenario: Scenario, missing_bytes: Callable[[Scenario], int]) -> str:
    """A sentence that names changes with which the only row of `scenario` fits: single ones, or else several together.

    `missing_bytes` plans a scenario and returns the bytes by which it exceeds the device's memory.
    """
    def fits(changes: Iterable[Change]) -> bool:
        return not missing_bytes(reduce(lambda done, change: change.made(done), changes, scenario))

    changes = list(possible(scenario))
    alone: dict[str, Change] = {}
    for change in changes:
        if change.key not in alone and fits([change]):
            alone[change.key] = change
    if alone:
        return f"it would fit with {' or '.join(change.words for change in alone.values())}"
    together: dict[str, Change] = {}
    for change in changes:
        together[change.key] = change
        if fits(together.values()):
            return f"it would fit with {joined([each.words for each in needed(together, fits)])}"
    return "no supported change makes it fit; use a smaller model or a device with more memory"


def needed(together: dict[str, Change], fits: Callable[[Iterable[Change]], bool]) -> list[Change]:
    """The changes of `together` that are necessary to fit."""
    kept = list(together.values())
    for change in together.values():
        rest = [each for each in kept if each is not change]
        if rest and fits(rest):
            kept = rest
    return kept


def possible(scenario: Scenario) -> Iterator[Change]:
    """The changes that are still possible, in ascending order of cost; numbers are halved repeatedly."""
    parallel, train, model, cluster = scenario.parallel, scenario.train, scenario.model, scenario.cluster
    if cluster.loss != "chunked" and model.vocabulary:
        yield Change("cluster", "loss", "chunked")
    if not parallel.recompute:
        yield Change("parallel", "recompute", value=True)
    if parallel.stages != ("zero3",):
        yield Change("parallel", "stages", ("zero3",))
    yield from (Change("train", "micro_batch", each) for each in halves(train.micro_batch, 1))
    if cluster.optimizer != "host":
        yield Change("cluster", "optimizer", "host")
    yield from (Change("model", "sequence", each) for each in halves(model.sequence, SHORTEST))


def halves(number: int, least: int) -> Iterator[int]:
    """
    >>> list(halves(32, 4)), list(halves(3, 1)), list(halves(0, 1))
    ([16, 8, 4], [1], [])
    """
    while number // 2 >= least:
        number //= 2
        yield number
