"""The memory that every rank must keep between steps, by formula, for every stage and variant, padding included.

The ZeRO paper's table, sections 3 and 5, unit by unit as `sharding` cuts them: 2Ψ or 4Ψ for weights and for gradients,
K Ψ for the optimizer, divided by N if the stage shards them. Float32 accumulation adds 4Ψ to the gradients. Error
feedback adds 4Ψ to the optimizer state in every stage, or 8Ψ if steps may be skipped.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from zerosim.allocation import MODEL_STATES, Kind, Tier
from zerosim.models.units import Model, Unit
from zerosim.sharding import Mesh, owned, padded
from zerosim.training.config import Config

FLOAT_BYTES = np.dtype(np.float32).itemsize


@dataclass(frozen=True)
class Resting:
    """Bytes on one rank; `padding` is the part that is padding."""

    parameters: int
    gradients: int
    optimizer: int
    padding: int

    @property
    def total(self) -> int:
        return self.parameters + self.gradients + self.optimizer


def resting_bytes(config: Config, tier: Tier = "device") -> Resting:
    """The bytes that each rank keeps in a tier of memory after a step."""
    sums, padding = Counter[str](), 0.0
    for unit in config.model.units:
        for kind, (kept, exact) in unit_bytes(config, unit, tier).items():
            sums[kind] += kept
            padding += kept - exact
        kept, exact = residual_bytes(config, unit, tier)
        sums["optimizer"] += kept
        padding += kept - exact
    return Resting(sums["parameters"], sums["gradients"], sums["optimizer"], round(padding))


def far_resting(config: Config) -> dict[Tier, dict[Kind, int]]:
    """The bytes that each rank keeps between steps beside the device's memory, by tier and kind."""
    tiers: tuple[Tier, ...] = ("host", "disk")
    return {tier: {kind: getattr(resting_bytes(config, tier), kind) for kind in MODEL_STATES} for tier in tiers}


def needed_as_began(config: Config) -> dict[str, dict[Kind, int]]:
    """The most bytes of each kind that a step still needs when the reduction, or the update, of a unit begins.

    When gradients are reduced, full weights have been freed; when weights are updated, so have all arrays of backward,
    except the last unit's outputs. A shard that another tier keeps may be on the device. There are no figures with
    prefetch or overlap, where another thread frees arrays.
    """
    parallel, resting, task = config.row.parallel, resting_bytes(config), config.model.task
    if parallel.prefetch or parallel.overlap:
        return {}
    near = max((owned(unit.count, config.mesh).length for unit in config.model.units), default=0)
    weights = resting.parameters + ("parameters" in config.tiers) * near * config.precision.weights.itemsize
    outputs = config.at_once * config.row.train.micro_batch * (task.inputs if task.tokens else 1) * task.outputs
    updating: dict[Kind, int] = {
        "parameters": weights, "gradients": resting.gradients,
        "activations": outputs * config.computing.weights.itemsize}
    reducing: dict[Kind, int] = {"parameters": weights}
    return {"update": updating} | ({"reduce_scatter": reducing} if parallel.reshard_after_forward else {})


def unit_bytes(config: Config, unit: Unit, tier: Tier = "device") -> dict[str, tuple[int, float]]:
    """The bytes that each rank keeps of one unit in a tier, by kind: with padding, and by the formula without it."""
    sharded, mesh = config.stage.sharded, config.mesh
    weights = config.precision.weights.itemsize
    per_element: dict[Kind, int] = {"parameters": weights}
    if not unit.frozen:
        wide = FLOAT_BYTES if config.accumulates_in_float32 else 0
        state = config.precision.state.itemsize * len(config.rule.slots)
        per_element |= {"gradients": weights + wide, "optimizer": state}
    found: dict[str, tuple[int, float]] = {}
    for kind, size in per_element.items():
        kept, exact = lengths(unit.count, mesh, sharded=kind in sharded)
        here = config.tiers.get(kind, "device") == tier
        found[kind] = (kept * size, exact * size) if here else (0, 0.0)
    second, once = found["parameters"], config.secondary_of(0)
    if once and later_uses(config.model, unit) and tier == "device":
        copied = config.computing.weights.itemsize
        found["parameters"] = (second[0] + owned(unit.count, once).length * copied,
                               second[1] + unit.count / once.group * copied)
    return found


def residual_bytes(config: Config, unit: Unit, tier: Tier) -> tuple[int, int]:
    """The bytes of a unit's quantisation residuals that each rank keeps on the device: with padding, and without."""
    copies = 0 if unit.frozen or tier != "device" else config.residuals
    return copies * FLOAT_BYTES * padded(unit.count, config.ranks), copies * FLOAT_BYTES * unit.count


def later_uses(model: Model, unit: Unit) -> int:
    """The number of times a micro-batch uses a unit's weights after the first; a second copy serves them."""
    return (*model.forward_units, *model.backward_units).count(unit) - 1


def lengths(count: int, mesh: Mesh, *, sharded: bool) -> tuple[int, float]:
    """The number of elements that a rank keeps of `count`: with padding, and by the formula without it."""
    return (owned(count, mesh).length, count / mesh.group) if sharded else (padded(count, mesh.size), count)
