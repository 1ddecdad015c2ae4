"""The peaks of other tiers of memory than the device's, and the bytes copied between tiers, by formula.

    staging   an array for data of another tier; the host's for its updates, otherwise the device's
    pipeline  of state in files three units are staged at a time: one is written, one updated, one read

Every run reaches all of them, to the byte.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from zerosim.allocation import MODEL_STATES, Kind, Tier
from zerosim.formulas.resting import FLOAT_BYTES, resting_bytes
from zerosim.models.units import Unit
from zerosim.sharding import full, owned, padded
from zerosim.training.config import Config

FAR: tuple[Tier, ...] = ("host", "disk")


def tier(config: Config, kind: Kind) -> Tier:
    return config.tiers.get(kind, "device")


def far_resting(config: Config) -> dict[str, dict[str, int]]:
    """The bytes that each rank keeps between steps, by tier and kind."""
    found = {}
    for each in FAR:
        resting = resting_bytes(config, each)
        found[str(each)] = {str(kind): getattr(resting, kind) for kind in MODEL_STATES}
    return found


def far_peaks(config: Config, *, updated: bool = True) -> dict[str, dict[str, int]]:
    """The peaks of a rank in each tier, by kind; `updated` says whether any step was not skipped."""
    found = far_resting(config)
    if config.steps_here == 0:
        return found | {"host": found["host"] | {"gradients": 0}}
    host = found["host"]
    if tier(config, "gradients") == "host":
        host["gradients"] = far_gradients(config)
    staged = staged_on_host(config) if updated else Staged()
    host["parameters"] += staged.parameters
    host["gradients"] += staged.gradients
    host["optimizer"] += staged.optimizer
    host["buffers"] = staged.buffers
    return found


@dataclass(frozen=True)
class Staged:
    """The peaks of staging arrays, by kind."""

    parameters: int = 0
    gradients: int = 0
    optimizer: int = 0
    buffers: int = 0


def trained(config: Config) -> list[Unit]:
    return [unit for unit in config.model.units if not unit.frozen]


def updated_length(config: Config, unit: Unit) -> int:
    """The number of elements of a unit that a rank updates."""
    mesh = config.mesh
    return (owned(unit.count, mesh) if "optimizer" in config.stage.sharded else full(unit.count, mesh.size)).length


def state_bytes(config: Config, unit: Unit) -> int:
    """The bytes of a rank's optimizer state of a unit."""
    return updated_length(config, unit) * config.precision.state.itemsize * len(config.rule.slots)


def weights_bytes(config: Config, unit: Unit) -> int:
    """The bytes of the weights of a unit that a rank updates."""
    return updated_length(config, unit) * config.precision.weights.itemsize


def gradient_bytes(config: Config, unit: Unit) -> int:
    """The bytes of the gradient that an update of a unit reads."""
    wide = FLOAT_BYTES if config.accumulates_in_float32 else config.precision.weights.itemsize
    return updated_length(config, unit) * wide


def difference_bytes(config: Config, unit: Unit) -> int:
    """The bytes of the updates of a unit, if updates are sent in place of weights."""
    travel = config.stage.publishes and config.row.parallel.publish == "updates"
    return updated_length(config, unit) * config.computing.weights.itemsize * travel


def staged_on_host(config: Config) -> Staged:
    """The arrays that the host stages for updates because another tier keeps them."""
    units = trained(config)
    if tier(config, "optimizer") == "device" or not units:
        return Staged()
    if config.row.parallel.delayed_update:
        near = 0 if "gradients" in config.tiers else max(gradient_bytes(config, unit) for unit in units)
        waits = len(delayed_steps(config, config.steps_here)) > 0
        return Staged(parameters=waits * sum(weights_bytes(config, unit) for unit in units), gradients=near)
    return Staged(
        parameters={
            "device": max(weights_bytes(config, unit) for unit in units),
            "host": 0,
            "disk": pipeline([weights_bytes(config, unit) for unit in units]),
        }[tier(config, "parameters")],
        gradients=0 if "gradients" in config.tiers else max(gradient_bytes(config, unit) for unit in units),
        optimizer=pipeline([state_bytes(config, unit) for unit in units]) * (tier(config, "optimizer") == "disk"),
        buffers=max(difference_bytes(config, unit) for unit in units),
    )


def delayed_steps(config: Config, updates: int) -> range:
    """The steps of this run that apply the update of the previous one: all but the first of a training."""
    return range(1, updates + (config.done > 0))


def pipeline(staged: Sequence[int]) -> int:
    """The largest sum of three neighbours.

    >>> pipeline([1, 5, 2, 4]), pipeline([7])
    (11, 7)
    """
    return max(sum(staged[max(k - 1, 0) : k + 2]) for k in range(len(staged)))


def staged_to_update(config: Config) -> int:
    """The bytes that the device stages for updates because another tier keeps the weights."""
    if tier(config, "parameters") == "device" or tier(config, "optimizer") != "device":
        return 0
    return max((weights_bytes(config, unit) for unit in trained(config)), default=0)


def arriving(config: Config) -> np.dtype[np.generic]:
    """The dtype of a gradient after its reduction."""
    return config.summed if config.addition.collective is None else config.wire


def far_gradients(config: Config) -> int:
    """The peak of reduced gradients on the host: the resting ones, and a unit's copies while it is kept."""
    sent, kept = arriving(config), config.precision.weights
    wide = FLOAT_BYTES * config.accumulates_in_float32
    copies = sent.itemsize + wide + kept.itemsize * (sent != kept)
    resting, most, done = 0, 0, set[Unit]()
    last = {unit: number for number, unit in enumerate(config.model.backward_units)}
    everything = resting_bytes(config, "host").gradients
    for number, unit in enumerate(config.model.backward_units):
        if unit.frozen or last[unit] != number:
            continue
        length = owned(unit.count, config.mesh).length
        most = max(most, resting + copies * length)
        resting += (wide + kept.itemsize) * length
        done.add(unit)
    if config.reductions > 1:
        most = everything + max((copies * owned(unit.count, config.mesh).length for unit in done), default=0)
    return max(most, everything)


@dataclass(frozen=True)
class Use:
    """A use of a unit's full weights; `reads` says whether they are gathered from shards in another tier."""

    unit: Unit
    reads: bool


def uses(config: Config) -> list[Use]:
    """The uses of a micro-batch, in order; a second copy serves all but the first of each unit."""
    found, seen = [], set[Unit]()
    for unit in (*config.model.forward_units, *config.model.backward_units):
        found.append(Use(unit, not (config.secondary_of(0) and unit in seen)))
        seen.add(unit)
    return found


def far_parameters(config: Config) -> int:
    """The peak of weights on the device in addition to the resting ones: full units, and shards in transfer."""
    parallel = config.row.parallel
    walk = kept_walk(config) if not parallel.reshard_after_forward else (
        prefetched_walk(config) if parallel.prefetch else walk_when_used(config))
    return max(staged_to_update(config), *walk)


def sizes(config: Config, use: Use) -> tuple[int, int]:
    """The bytes of a full unit, and of the shard that is transferred for it."""
    unit, mesh = use.unit, config.mesh
    whole = padded(unit.count, config.ranks) * config.computing.weights.itemsize
    return whole, owned(unit.count, mesh).length * config.precision.weights.itemsize * use.reads


def in_turn(config: Config) -> list[Use]:
    """The uses of a micro-batch and, if another follows, its first."""
    found = uses(config)
    return [*found, found[0]] if config.passes > 1 and config.model.backward_units else found


def coming_while_reduced(config: Config) -> int:
    """The longest shard in transfer to the device while a gradient is reduced."""
    if tier(config, "parameters") == "device":
        return 0
    after_first = in_turn(config)[len(config.model.forward_units) + 1 :]
    return max((sizes(config, use)[1] for use in after_first), default=0)


def walk_when_used(config: Config) -> Iterator[int]:
    """The bytes alive when each unit is gathered, and when the next one's shard arrives."""
    turns = in_turn(config)
    for now, after in zip(turns, [*turns[1:], None], strict=True):
        whole, shard = sizes(config, now)
        yield whole + shard
        if after is not None:
            yield whole + sizes(config, after)[1]


def prefetched_walk(config: Config) -> Iterator[int]:
    """The bytes alive when each unit is gathered while the previous one is in use."""
    turns = in_turn(config)
    yield sum(sizes(config, turns[0]))
    for now, after in pairwise(turns):
        yield sizes(config, now)[0] + sum(sizes(config, after))


def kept_walk(config: Config, reads: Counter[Unit] | None = None) -> Iterator[int]:
    """The bytes alive if weights are kept from forward to backward; `reads` counts the transferred shards."""
    forward, backward = config.model.forward_units, config.model.backward_units
    kept: dict[Unit, int] = {}
    turns = [*((unit, True) for unit in forward), *((unit, False) for unit in backward)]
    following = [*(unit for unit, _ in turns[1:]), forward[0] if config.passes > 1 and backward else None]
    for (unit, goes_forward), after in zip(turns, following, strict=True):
        whole, shard = sizes(config, Use(unit, reads=unit not in kept))
        if reads is not None and unit not in kept:
            reads[unit] += 1
        others = sum(held for each, held in kept.items() if each is not unit)
        kept.pop(unit, None)
        coming = 0 if after is None or after in kept or after is unit else sizes(config, Use(after, reads=True))[1]
        yield others + whole + max(shard, coming)
        if goes_forward and unit in backward:
            kept[unit] = whole


def gathers(config: Config) -> Counter[Unit]:
    """The number of times per micro-batch that a rank transfers its shard of a unit to the device."""
    found = Counter[Unit]()
    if config.row.parallel.reshard_after_forward:
        found.update(use.unit for use in uses(config) if use.reads)
    else:
        list(kept_walk(config, found))
    return found


def moved_bytes(config: Config, updates: int) -> dict[str, int]:
    """The bytes that a rank copies between tiers in all steps, by kind and direction."""
    found, units = Counter[str](), trained(config)
    weights, optimizer = tier(config, "parameters"), tier(config, "optimizer")
    place = "device" if optimizer == "device" else "host"
    if "gradients" in config.tiers:
        kept = sum(owned(unit.count, config.mesh).length for unit in units) * arriving(config).itemsize
        found["gradients, device to host"] += config.steps_here * config.reductions * kept
    elif place == "host":
        found["gradients, device to host"] += updates * sum(gradient_bytes(config, unit) for unit in units)
    if weights != "device":
        shards = sum(
            often * owned(unit.count, config.mesh).length for unit, often in gathers(config).items())
        once = shards * config.precision.weights.itemsize
        found[f"parameters, {weights} to device"] += config.steps_here * config.passes * once
    if weights != place:
        applied = len(delayed_steps(config, updates)) if config.row.parallel.delayed_update else updates
        once = applied * sum(weights_bytes(config, unit) for unit in units)
        found[f"parameters, {weights} to {place}"] += once * (not config.precision.mixed)
        found[f"parameters, {place} to {weights}"] += once * (not difference_bytes(config, config.model.units[0]))
    if place == "host":
        found["buffers, host to device"] += updates * sum(difference_bytes(config, unit) for unit in units)
    if optimizer == "disk":
        once = updates * sum(state_bytes(config, unit) for unit in units)
        found["optimizer, disk to host"] += once
        found["optimizer, host to disk"] += once
    return {what: count for what, count in found.items() if count}
