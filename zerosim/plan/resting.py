"""What every rank must keep between steps, by formula, for every stage and variant, padding included and apart.

The ZeRO paper's table, sections 3 and 5, unit by unit as `sharding` cuts them: 2Ψ or 4Ψ for weights and for gradients,
K Ψ for the optimizer, divided by N where the stage shards them. Float32 accumulation adds 4Ψ to the gradients.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from zerosim.model import Unit
from zerosim.plan.memory import SHARDED
from zerosim.recipe import Recipe
from zerosim.sharding import chunk_length, padded

FLOAT_BYTES = np.dtype(np.float32).itemsize


@dataclass(frozen=True)
class Resting:
    """Bytes on one rank; `padding` is how much of them the padding is."""

    parameters: int
    gradients: int
    optimizer: int
    padding: int

    @property
    def total(self) -> int:
        return self.parameters + self.gradients + self.optimizer


def resting_bytes(recipe: Recipe, stage: str | None = None) -> Resting:
    """What each rank keeps after a step, to the byte; of another stage, if one is named."""
    sums, padding = Counter[str](), 0.0
    for unit in recipe.model.units:
        for kind, (kept, exact) in unit_bytes(recipe, unit, stage).items():
            sums[kind] += kept
            padding += kept - exact
    return Resting(sums["parameters"], sums["gradients"], sums["optimizer"], round(padding))


def unit_bytes(recipe: Recipe, unit: Unit, stage: str | None = None) -> dict[str, tuple[int, float]]:
    """What each rank keeps of one unit, by kind: with padding, and by the formula that knows none."""
    sharded, ranks = SHARDED[stage or recipe.stage], recipe.scenario.world.ranks
    weights = recipe.precision.weights.itemsize
    per_element = {"parameters": weights}
    if not unit.frozen:
        wide = FLOAT_BYTES if recipe.scenario.parallel.accumulate_dtype == "fp32" else 0
        per_element |= {"gradients": weights + wide, "optimizer": FLOAT_BYTES * len(recipe.rule.slots)}
    found = {}
    for kind, size in per_element.items():
        kept, exact = lengths(unit.count, ranks, sharded=kind in sharded)
        found[kind] = (kept * size, exact * size)
    return found


def lengths(count: int, ranks: int, *, sharded: bool) -> tuple[int, float]:
    """The elements a rank keeps of `count`, with padding, and by the formula that knows none."""
    return (chunk_length(count, ranks), count / ranks) if sharded else (padded(count, ranks), count)


def would_fit(recipe: Recipe, stage: str, allowed_bytes: int) -> bool:
    """Whether the model states of a stage, and the units it has full at a time, are within `allowed_bytes`."""
    states = resting_bytes(recipe, stage)
    bounds = peak_bounds(recipe, stage)
    return states.optimizer + bounds.get("parameters", 0) + bounds.get("gradients", 0) <= allowed_bytes


def peak_bounds(recipe: Recipe, stage: str | None = None) -> dict[str, int]:
    """The most that may be alive of weights and gradients while a stage works, where all is in one dtype.

    What rests, and besides: one full unit of weights in Stage III, two with prefetch, all of them where they are kept
    from forward to backward; one full unit of gradients in Stages II and III, another one where micro-batches add up.
    """
    rests, row, parallel = resting_bytes(recipe, stage), SHARDED[stage or recipe.stage], recipe.scenario.parallel
    ranks, weights = recipe.scenario.world.ranks, recipe.precision.weights.itemsize
    units = [padded(unit.count, ranks) * weights for unit in recipe.model.units]
    largest = max(units)
    bounds = {"parameters": rests.parameters}
    if "parameters" in row:
        bounds["parameters"] += largest * (2 if parallel.prefetch else 1)
        if not parallel.reshard_after_forward:
            bounds["parameters"] = rests.parameters + sum(units)
    plain = parallel.order in ("ring", "rank") and parallel.reduce_dtype == parallel.accumulate_dtype == "weights"
    if plain:
        several = recipe.parts > 1 and not recipe.part_by_part
        bounds["gradients"] = rests.gradients + largest * (("gradients" in row) + several)
        if recipe.part_by_part:
            bounds["gradients"] += largest // ranks
    return bounds
