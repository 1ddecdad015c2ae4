"""Search: the fastest layouts of a model on some devices.

    space     the values of each key that a layout chooses: stage, groups, micro-batch, recomputation
    layout    one value of each; all layouts train on the same batch, and those in which a value has no effect are left
              out
    bound     a lower limit of a layout's memory or time, known before the layout is planned

Layouts are planned in ascending order of their bounds of time, until these exceed the times that are wanted: so none
that is faster is left out. The bounds come from the layout's kin: the same layout with one data rank and without its
update, whose collectives and computations are some of the layout's, in the same order.

    time      A plan's clock takes sums and maxima only, and so no step is shorter than that of its kin. Collectives
              that occupy a part of the device would make an exception; in the kin they occupy none. An update on the
              device takes the kin's at least, divided by the ranks that share it.
    memory    Weights and optimizer state rest on a device throughout the step (`figures.resting`, by formula), and the
              kin's activations are the layout's. Before the step a device has all that rests.

Layouts that differ in stage or groups only share their kin. Layouts that differ in micro-batch or recomputation only
are relatives. A rank runs its collectives one after the other, and each micro-batch needs the same. So no step is
shorter than the collectives of a relative that has been planned and has as many micro-batches or fewer.
"""

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import inf, prod
from typing import Any, NamedTuple

from zerosim.errors import ScenarioError, UsageError
from zerosim.figures.resting import resting_bytes
from zerosim.plan.cluster import NS
from zerosim.plan.planned_row import PlannedRow
from zerosim.plan.planning import Plan, Unplanned, advised, on_ranks, unplanned
from zerosim.plan.questions import Question
from zerosim.plan.reading import numbers_of_ranks, scenarios_of, searched, task_of, training, written
from zerosim.plan.rehearsal import rehearse
from zerosim.scenario import Scenario, Source
from zerosim.scenario.sections import Check
from zerosim.sharding import Directions
from zerosim.training.config import Config

MOST_LAYOUTS = 50_000
USUAL_MOST = 10
"""The layouts that a search finds if it is not told how many."""
OF_KIN = ("forward", "backward", "loss")
"""The computations of kin that their layout has too."""


def space(scenario: Scenario) -> dict[str, Sequence[Any]]:
    """The values of each key that a search tries on the scenario's ranks, in doubling steps."""
    ranks, per_host = scenario.world.ranks, scenario.cluster.devices_per_host
    hosts = [0, *(each for each in doubled(per_host) if each < ranks and ranks % each == 0)]
    return {
        "parallel.stages": [["ddp"], ["zero1"], ["zero2"], ["zero3"]],
        "parallel.shard_ranks": hosts,
        "parallel.secondary_ranks": hosts[:2],
        "train.micro_batch": [each for each in doubled(1) if samples(scenario) % each == 0],
        "parallel.recompute": [False, True],
    }


def doubled(first: int) -> Iterator[int]:
    """`first` and its doubles, twenty of them."""
    return (first << number for number in range(20))


def relatives(config: Config) -> str:
    """A key that layouts share which send the same for the same number of micro-batches, and more for more."""
    parallel, places = config.row.parallel, config.directions.places
    again: dict[str, Any] = {} if places > 1 else {"recompute": False, "recompute_keeps": ""}
    return repr((config.row.stage, config.ranks, config.samples, dataclasses.replace(parallel, **again)))


class Kin(NamedTuple):
    """The least of every layout with this kin."""

    seconds: float
    """Without the update."""
    update: float
    """Seconds to update all weights on the device."""
    activations: int


@dataclass(frozen=True, eq=False)
class Bounds:
    """The bounds of layouts; each kin is planned once."""

    _kin: dict[str, Kin] = field(default_factory=dict)
    _planned: defaultdict[str, list[tuple[int, float]]] = field(default_factory=lambda: defaultdict(list))
    """Micro-batches of a rank, and seconds of communication, of the layouts that have been planned."""

    def least_bytes(self, row: Unplanned) -> int:
        """The bytes that the layout's peak cannot be below."""
        resting = max((resting_bytes(each) for each in row.config.of_pipeline), key=lambda each: each.total)
        if resting.total > row.cluster.device.memory:
            return resting.total
        return max(resting.total, resting.parameters + resting.optimizer + self._of(row).activations)

    def least_seconds(self, row: Unplanned) -> float:
        """The seconds that the layout's step cannot be below, in the mean if ranks are uneven."""
        found, config = self._of(row), row.config
        shared = config.mesh.group if "optimizer" in config.stage.sharded else 1
        return self._even(row) * (found.seconds + (0.0 if config.tiers else found.update / shared))

    def _even(self, row: Unplanned) -> float:
        """The time of an even step, at most, relative to the mean time of uneven ones."""
        uneven = row.cluster.stragglers
        return min(1.0, float(uneven.factors(row.config.ranks).mean())) if uneven.any else 1.0

    def least_by_relatives(self, row: Unplanned) -> float:
        """The least time of a row by relatives that have been planned already."""
        block, found = row.config.block, self._planned.get(relatives(row.config), ())
        return self._even(row) * max((seconds for least, seconds in found if least <= block), default=0.0)

    def note(self, row: PlannedRow) -> None:
        """Take a planned layout as a bound of its relatives."""
        self._planned[relatives(row.config)].append((row.config.block, row.communication_seconds))

    def _of(self, row: Unplanned) -> Kin:
        config = kin(row.config)
        key = repr((dataclasses.replace(config.row, name=""), row.cluster))
        if key not in self._kin:
            undisturbed = dataclasses.replace(row.cluster, device=dataclasses.replace(row.cluster.device, channels=0))
            found = rehearse(config, undisturbed)
            others = sum(ns for what, ns in found.clock.computing_ns.items() if what not in OF_KIN)
            seconds, update = (found.clock.now_ns - others) / NS, found.clock.computing_ns["update"] / NS
            self._kin[key] = Kin(seconds, update, found.peak["activations"])
        return self._kin[key]


def kin(config: Config) -> Config:
    """The layout on one data rank, with as many micro-batches as a rank has; of stages one that computes the same."""
    stage = "zero3" if config.stage.gathers else "ddp"
    parallel = dataclasses.replace(
        config.row.parallel, stages=(stage,), shard_ranks=0, replicas=0, secondary_ranks=0)
    train = dataclasses.replace(config.row.train, micro_batches=config.block)
    return dataclasses.replace(config, row=dataclasses.replace(
        config.row, stage=stage, ranks=1, parallel=parallel, train=train))


@dataclass(frozen=True)
class Searched:
    """The layouts that a search found, the fastest first, and the numbers of the others."""

    rows: tuple[PlannedRow, ...]
    layouts: int
    """All valid layouts."""
    planned: int
    too_large: int
    """Layouts that were not planned, because their memory cannot fit."""
    slower: int
    """Layouts that were not planned, because they cannot be among the fastest."""

    @property
    def words(self) -> str:
        return (f"{self.layouts:,} layouts: {self.planned:,} planned; of the others {self.too_large:,} cannot fit and "
                f"{self.slower:,} cannot be faster, by proved bounds")


def fastest(layouts: Sequence[Unplanned], most: float = USUAL_MOST) -> Searched:
    """The `most` fastest of the layouts that fit or, if none does, the one that lacks the least by its bounds."""
    bounds, rows, planned = Bounds(), list[PlannedRow](), 0
    needed = [bounds.least_bytes(row) for row in layouts]
    queue = [(bounds.least_seconds(row), number) for number, row in enumerate(layouts)
             if needed[number] <= row.cluster.device.memory]
    too_large, slowest = len(layouts) - len(queue), inf
    heapify(queue)
    while queue and queue[0][0] < slowest:
        least, number = heappop(queue)
        if (more := bounds.least_by_relatives(layouts[number])) > least:
            heappush(queue, (more, number))
            continue
        row, planned = layouts[number].planned(), planned + 1
        bounds.note(row)
        rows = sorted([*rows, row] if row.fits else rows, key=lambda each: each.mean_seconds)[: int(min(most, 1e6))]
        slowest = rows[-1].mean_seconds if len(rows) == most else inf
    if not rows:
        rows = [layouts[needed.index(min(needed))].planned()]
    return Searched(tuple(rows), len(layouts), planned, too_large, len(layouts) - too_large - planned)


def layouts_of(scenario: Scenario, values: Mapping[str, Sequence[Any]], swept: tuple[str, ...] = ()) -> list[Unplanned]:
    """Every layout of a scenario, without those that are refused or in which a value has no effect.

    Raises the first error if all are refused.
    """
    found, refused = [], None
    if prod(map(len, values.values())) > MOST_LAYOUTS:
        raise UsageError(f"--search: that makes more than {MOST_LAYOUTS:,} layouts; set keys by --set")
    for combination in itertools.product(*values.values()):
        keys = dict(zip(values, combination, strict=True))
        try:
            (row,) = unplanned(with_keys(scenario, keys), (
                *swept, *(f"{key}={written(value)}" for key, value in keys.items())), task_of)
        except ScenarioError as error:
            refused = refused or error
            continue
        if not any(f"parallel.{key}" in keys for key in row.config.ignored):
            found.append(dataclasses.replace(row, layout=", ".join([in_words(row.config, keys), *swept])))
    if not found and refused is not None:
        raise refused
    return found


def with_keys(scenario: Scenario, keys: Mapping[str, Any]) -> Scenario:
    """The scenario with these keys, and with as many micro-batches as make the same batch."""
    size = keys.get("train.micro_batch", scenario.train.micro_batch)
    sections: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    sections["train"] = {"micro_batches": samples(scenario) // size}
    for key, value in keys.items():
        section, _, name = key.partition(".")
        sections[section][name] = tuple(value) if isinstance(value, list) else value
    return dataclasses.replace(scenario, **{
        name: dataclasses.replace(getattr(scenario, name), **changes) for name, changes in sections.items()})


SAID = ("parallel.stages", "parallel.shard_ranks", "train.micro_batch", *(
    f"parallel.{name}_ranks" for name in (*Directions().sizes, "pipeline")))
"""The keys of a layout that its words begin with."""


def in_words(config: Config, keys: Mapping[str, Any]) -> str:
    """A layout in words, such as `tp2 × Stage III on 8 × 4 copies, mb2, recompute`: micro-batches of 2."""
    group = config.mesh.group
    copies = [f"{config.ranks // group} copies"] if group < config.ranks else []
    parts = [config.directions.words, f"{config.stage.title} on {group}", *copies]
    others = {key.partition(".")[2]: value for key, value in keys.items() if key not in SAID and value}
    said = [key if value is True else f"{key} {value}" for key, value in others.items()]
    return ", ".join([" × ".join(filter(None, parts)), f"mb{config.row.train.micro_batch}", *said])


def read_search(
    path: Source, ranks: Sequence[int], overrides: Mapping[str, Any], sweep: Mapping[str, Sequence[Any]], *,
    most: str | int = USUAL_MOST, question: Question | None = None, python: bool = True,
    say: Callable[[str], None] = lambda words: None,
) -> Plan:
    """The plan of the `most` fastest layouts that fit on each number of ranks; `most` may be `all`.

    Keys in `overrides` are not searched; `sweep` has the values of further keys, or other values. The other arguments
    are those of `read_plan`. Raises `UsageError` for a scenario with rows of its own.
    """
    wanted = inf if most == "all" else number_of_layouts(most)
    fixed = [f"{key}={written(value)}" for key, value in overrides.items()]
    scenario = dataclasses.replace(training(path, fixed, python=python), check=Check())
    scenarios = scenarios_of(path, fixed, sweep, MOST_LAYOUTS, python=python) or [((), scenario)]
    if any(each.variant for _, each in scenarios):
        raise UsageError("--search: this scenario has rows of its own, [[variant]]; use one without")

    def on(count: int) -> Plan:
        found, batch = list[Unplanned](), samples(on_ranks(scenario, count))
        for names, each in scenarios:
            one = on_ranks(dataclasses.replace(each, check=Check(), fault=()), count)
            if batch % one.train.micro_batch:
                raise UsageError(f"--search: micro-batches of {one.train.micro_batch} do not make a batch of {batch}")
            one = with_keys(one, {"train.micro_batches": batch // one.train.micro_batch})
            values = {key: each for key, each in space(one).items() if key not in {**overrides, **sweep}}
            found += layouts_of(one, values, names)
        best = fastest(found, wanted)
        advice = "" if best.rows[0].fits else advised(best.rows, task_of)
        return Plan(scenario, best.rows, question, advice, best.words)

    counts = numbers_of_ranks(ranks)
    if question is not None and question.days < inf and not counts:
        return searched(on, scenario.cluster.devices_per_host)
    plans = [on(count) for count in counts or [scenario.world.ranks]]
    rows = tuple(row for each in plans for row in each.rows)
    fit = any(row.fits for row in rows)
    return Plan(scenario, rows, question, "" if fit else plans[-1].advice, "; ".join(each.search for each in plans))


def number_of_layouts(most: str | int) -> int:
    """The number of layouts that is wanted. Raises `UsageError` for what is none."""
    if isinstance(most, bool) or not str(most).isdecimal() or int(most) < 1:
        raise UsageError(f"search: found {most!r}; give a number of layouts from 1, or all")
    return int(most)


def samples(scenario: Scenario) -> int:
    """The samples of a step."""
    return scenario.train.micro_batch * scenario.train.micro_batches
