"""The bounds of a search: lower limits of a layout's memory or time, known before the layout is planned.

They come from the layout's kin, which is the same layout on one data rank with one micro-batch.

    time      A rank computes one micro-batch after the other, and waits for the collectives of the model's code. Each
              takes as long as that of the kin. Before the first pass of a rank of a pipeline the ranks before
              it have run a forward pass, and after its last pass they run a backward pass. An update on the device
              takes the kin's at least, divided by the ranks that share it. Collectives beside it only delay a rank.
    memory    Weights and optimizer state rest on a device throughout the step (`figures.resting`, by formula), and the
              activations of the kin's micro-batch join them, or of one sample. Before the step all rests.

Cheaper bounds come first: kin in one piece, and without recomputation. Layouts that differ in stage or groups only
share their kin, whose ranks of a pipeline are rehearsed by themselves. Layouts that differ in micro-batch or
recomputation only are relatives. A rank runs its collectives one after the other, and each micro-batch needs the same.
So no step is shorter than the collectives over data ranks of a planned relative with as many micro-batches or fewer.
"""

import dataclasses
import itertools
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from zerosim.plan.cluster import NS
from zerosim.plan.directions import direction_of
from zerosim.plan.joined import resting_of, updating
from zerosim.plan.planned_row import PlannedRow
from zerosim.plan.planning import Unplanned
from zerosim.plan.rehearsal import rehearsed_without_others
from zerosim.training.config import Config

OF_KIN = ("forward", "backward", "loss")
"""The computations of kin that their layout has too."""


def relatives(config: Config) -> str:
    """A key that layouts share which send the same over data ranks for each micro-batch."""
    return repr((config.stage_key, config.ranks, config.samples, computed_once(config).parallel))


class Kin(NamedTuple):
    """The least of every layout with this kin, for each rank of a pipeline."""

    seconds: list[float]
    """Seconds of one micro-batch."""
    update: float
    """Seconds to update all weights on the device, on the rank that needs most."""
    activations: list[int]


@dataclass(frozen=True, eq=False)
class Bounds:
    """The bounds of layouts; each kin is planned once."""

    _kin: dict[str, Kin] = field(default_factory=dict)
    _planned: defaultdict[str, list[tuple[int, float]]] = field(default_factory=lambda: defaultdict(list))
    """Micro-batches of a rank, and seconds of communication, of the layouts that have been planned."""

    def least_bytes(self, row: Unplanned) -> int:
        """The bytes that the layout's peak cannot be below."""
        resting = resting_of(row.config, row.cluster)
        if (most := max(each.total for each in resting)) > row.cluster.device.memory:
            return most
        for config in (smallest(kin(row.config)), kin(row.config)):
            most = max(max(each.total, each.parameters + each.optimizer + more)
                       for each, more in zip(resting, self._of(row, config).activations, strict=True))
            if most > row.cluster.device.memory:
                break
        return most

    def least_seconds(self, row: Unplanned) -> float:
        """The seconds that the layout's step cannot be below, in the mean if ranks are uneven."""
        found, config = self._of(row, kin(row.config)), row.config
        whole = config.parallel.schedule in ("gpipe", "1f1b")
        passed = itertools.accumulate(found.seconds, initial=0.0) if whole else itertools.repeat(0.0)
        passes = max(before + config.block * each for before, each in zip(passed, found.seconds, strict=False))
        shared = updating(config, row.cluster) / updating(kin(config), row.cluster)
        update = 0.0 if config.on_host or config.directions.pipeline > 1 else found.update / shared
        return self._even(row) * (passes + update)

    def first_seconds(self, row: Unplanned) -> float:
        """A lower bound that is found sooner: without recomputation, in one piece."""
        return self._mean_seconds(row, computed_once(in_one_piece(kin(row.config))))

    def second_seconds(self, row: Unplanned) -> float:
        """A lower bound that is found sooner than the least seconds: in one piece."""
        return self._mean_seconds(row, in_one_piece(kin(row.config)))

    def _mean_seconds(self, row: Unplanned, whole: Config) -> float:
        """Some rank of a pipeline computes as much as the mean of all, which is that of the model in one piece."""
        seconds = self._of(row, whole).seconds[0]
        return self._even(row) * row.config.block * seconds / row.config.directions.pipeline

    def _even(self, row: Unplanned) -> float:
        """The time of an even step, at most, relative to the mean time of uneven ones."""
        uneven = row.cluster.stragglers
        return min(1.0, float(uneven.factors(row.config.all_ranks).mean())) if uneven.any else 1.0

    def least_by_relatives(self, row: Unplanned) -> float:
        """The least time of a row by relatives that have been planned already."""
        block, found = row.config.block, self._planned.get(relatives(row.config), ())
        return self._even(row) * max((seconds for least, seconds in found if least <= block), default=0.0)

    def note(self, row: PlannedRow) -> None:
        """Take a planned layout as a bound of its relatives."""
        over_data = sum(ns for name, ns in row.found.clock.communicating_ns.items() if direction_of(name) == "data")
        self._planned[relatives(row.config)].append((row.config.block, over_data / NS))

    def _of(self, row: Unplanned, config: Config) -> Kin:
        key = repr((config.asked, row.cluster))
        if key not in self._kin:
            stages = rehearsed_without_others(config, row.cluster)
            clocks = [each.clock for each in stages]
            seconds = [(sum(clock.computing_ns[each] for each in OF_KIN) + sum(
                ns for name, ns in clock.communicating_ns.items()
                if direction_of(name) not in ("pipeline", "data"))) / NS
                for clock in clocks]
            update = max(clock.computing_ns["update"] for clock in clocks) / NS
            self._kin[key] = Kin(seconds, update, [each.peak["activations"] for each in stages])
        return self._kin[key]


def kin(config: Config) -> Config:
    """The layout on one data rank with one micro-batch; of stages one that computes the same."""
    stage = "zero3" if config.stage.gathers and config.parallel.param_dtype != "weights" else "ddp"
    train = dataclasses.replace(config.train, micro_batches=1)
    return with_parallel(dataclasses.replace(config.on(1).by(stage), train=train),
                         stages=(stage,), shard_ranks=0, replicas=0, secondary_ranks=0)


def smallest(config: Config) -> Config:
    """The config with one sample for each rank: no array of a micro-batch has fewer bytes."""
    return dataclasses.replace(config, train=dataclasses.replace(
        config.train, micro_batch=config.directions.expert))


def in_one_piece(config: Config) -> Config:
    """The config without a pipeline."""
    return with_parallel(
        dataclasses.replace(config, directions=dataclasses.replace(config.directions, pipeline=1)),
        pipeline_ranks=1, model_chunks=1, pipeline_layers=(), schedule="1f1b")


def computed_once(config: Config) -> Config:
    """The config without recomputation."""
    return with_parallel(
        config, recompute=False, recompute_keeps="", partition_activations=False, offload_activations=False)


def with_parallel(config: Config, **keys: Any) -> Config:
    """The config with other keys of [parallel]."""
    return dataclasses.replace(config, parallel=dataclasses.replace(config.parallel, **keys))
