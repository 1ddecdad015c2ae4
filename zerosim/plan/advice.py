"""Advice: the changes to a scenario that make a row fit; each is planned before it is named."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import reduce
from typing import Any, NamedTuple

from zerosim.core.errors import ScenarioError
from zerosim.core.words import duration, joined
from zerosim.plan.planned_row import PlannedRow
from zerosim.scenario.schema import Scenario
from zerosim.stages import STAGES

SHORTEST = 256
"""Sequences are not shortened below this number of tokens."""


class Change(NamedTuple):
    """A key of a scenario and a new value."""

    section: str
    key: str
    value: Any

    @property
    def title(self) -> str:
        if self.key == "stages":
            return STAGES[self.value[0]].title
        return f"{self.section}.{self.key} = {json.dumps(self.value)}"

    def made(self, scenario: Scenario) -> Scenario:
        changed = replace(getattr(scenario, self.section), **{self.key: self.value})
        return replace(scenario, **{self.section: changed})


def advice(scenario: Scenario, planned: Callable[[Scenario], PlannedRow]) -> str:
    """A sentence that names changes with which the only row of `scenario` fits: single ones, or else several together.

    `planned` returns the row of a scenario. Beside a change that offloads are the host's memory and the step's time.
    """
    def row(changes: Iterable[Change]) -> PlannedRow:
        return planned(reduce(lambda done, change: change.made(done), changes, scenario))

    def fits(changes: Iterable[Change]) -> bool:
        return row(changes).fits

    def price(changes: Sequence[Change]) -> str:
        if not any(change.key == "offload_optimizer" for change in changes):
            return ""
        nearest = row(changes)
        host = f"{nearest.host_bytes / 1e9:,.1f} GB of host memory"
        return f" ({host} for each device, {duration(nearest.step_seconds)} a step)"

    changes = list[Change]()
    for change in possible(scenario):
        with suppress(ScenarioError):       # which the other keys do not allow, such as those of a pipeline
            change.made(scenario)
            changes.append(change)
    alone: dict[str, Change] = {}
    for change in changes:
        if change.key not in alone and fits([change]):
            alone[change.key] = change
    if alone:
        return f"it would fit with {' or '.join(change.title + price([change]) for change in alone.values())}"
    together: dict[str, Change] = {}
    for change in changes:
        together[change.key] = change
        if fits(together.values()):
            enough = needed(together, fits)
            return f"it would fit with {joined([change.title for change in enough])}{price(enough)}"
    return "no supported change makes it fit; use a smaller model or a device with more memory"


def needed(together: dict[str, Change], fits: Callable[[Iterable[Change]], bool]) -> list[Change]:
    """The changes of `together` that are necessary to fit."""
    kept = list(together.values())
    for change in together.values():
        rest = [other for other in kept if other is not change]
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
    most_sharded = "zero2" if parallel.pipeline_ranks > 1 else "zero3"
    if parallel.stages != (most_sharded,):
        yield Change("parallel", "stages", (most_sharded,))
    yield from (Change("train", "micro_batch", samples) for samples in halves(train.micro_batch, 1))
    if parallel.offload_optimizer == "none":
        yield Change("parallel", "offload_optimizer", "host")
    yield from (Change("model", "sequence", length) for length in halves(model.sequence, SHORTEST))


def halves(number: int, least: int) -> Iterator[int]:
    """
    >>> list(halves(32, 4)), list(halves(3, 1)), list(halves(0, 1))
    ([16, 8, 4], [1], [])
    """
    while number // 2 >= least:
        number //= 2
        yield number
