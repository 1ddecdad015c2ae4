"""What every rank must have sent, by formula, for every stage and variant.

Derived from which collectives a step needs and what a ring of N ranks sends of a vector of n bytes, n (N − 1)/N;
nothing here looks at a run. The ZeRO paper, section 7, has the multiples of P: 2 for DDP and Stages I and II, 3 for
Stage III.
"""

from collections.abc import Iterable

import numpy as np

from zerosim.collectives import ALGORITHMS
from zerosim.model import Unit
from zerosim.recipe import Recipe
from zerosim.sharding import chunk_length, padded
from zerosim.stages import STAGES

NORM_BYTES = np.dtype(np.float64).itemsize


def sent_bytes(recipe: Recipe, rank: int, updates: int) -> int:
    """By `rank` in all steps, of which `updates` were not skipped."""
    parallel, row = recipe.scenario.parallel, STAGES[recipe.stage]
    steps, ranks = recipe.scenario.train.steps, recipe.scenario.world.ranks
    parts = recipe.parts if recipe.part_by_part else 1
    trained = [unit for unit in recipe.model.units if not unit.frozen]
    weights, to_all = recipe.precision.weights.itemsize, parallel.gradients == "all_reduce" and row.publishes

    sent = steps * parts * ring_bytes(trained, ranks, reduced_bytes(recipe))
    if to_all or not (row.publishes or row.gathers):
        sent += steps * parts * ring_bytes(trained, ranks, summed_bytes(recipe))
    if row.publishes:
        sent += updates * published_bytes(recipe, trained, rank)
    if row.gathers:
        sent += steps * parts * ring_bytes(gathered(recipe), ranks, weights)
    if recipe.scaling().needs_norm and (row.publishes or row.gathers):
        sent += steps * (ranks - 1) * len(trained) * NORM_BYTES
    return sent


def ring_bytes(units: Iterable[Unit], ranks: int, element_bytes: int) -> int:
    """What a rank sends when one ring collective goes through each of `units`, padded."""
    return sum(chunk_length(unit.count, ranks) * (ranks - 1) * element_bytes for unit in units)


def reduced_bytes(recipe: Recipe) -> int:
    """Of each element in a reduce-scatter of gradients."""
    return recipe.addition.sent_bytes or recipe.wire.itemsize


def summed_bytes(recipe: Recipe) -> int:
    """Of each element of a sum of gradients: what the wire has, unless integers were added."""
    if recipe.addition.sent_bytes is None:
        return recipe.wire.itemsize
    wide = recipe.scenario.parallel.accumulate_dtype == "fp32"
    return np.dtype(np.float32).itemsize if wide else recipe.precision.weights.itemsize


def published_bytes(recipe: Recipe, trained: Iterable[Unit], rank: int) -> int:
    """What `rank` sends to publish one update."""
    ranks, weights = recipe.scenario.world.ranks, recipe.precision.weights.itemsize
    if recipe.scenario.parallel.publish != "broadcasts":
        return ring_bytes(trained, ranks, weights)
    copies = sum(ALGORITHMS["tree.broadcast"].messages(rank, ranks, root) for root in range(ranks))
    return sum(copies * chunk_length(unit.count, ranks) * weights for unit in trained)


def gathered(recipe: Recipe) -> list[Unit]:
    """The units whose weights Stage III gathers in a part, in forward and backward."""
    units = list(recipe.model.units)
    if not recipe.scenario.parallel.reshard_after_forward:
        return units
    return units + [unit for unit in units if unit.layers[-1].index >= recipe.model.lowest_trained]


def volume(recipe: Recipe) -> float:
    """The mean over ranks of what they send in a step, in units of P (N − 1)/N, P being the bytes of all weights."""
    ranks, steps = recipe.scenario.world.ranks, recipe.scenario.train.steps
    if ranks == 1 or steps == 0:
        return 0.0
    whole = sum(padded(unit.count, ranks) for unit in recipe.model.units) * recipe.precision.weights.itemsize
    sent = sum(sent_bytes(recipe, rank, steps) for rank in range(ranks)) / ranks / steps
    return sent / (whole * (ranks - 1) / ranks)
