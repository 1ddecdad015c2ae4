"""What every rank must have sent and received, by formula, for every stage and variant.

Derived from which collectives a step needs and what each sends over N ranks; nothing here looks at a run. All but the
broadcast send N − 1 messages of a chunk and receive as many: n (N − 1)/N bytes of a vector of n bytes each way. An
order-free sum takes three of them: exponents there and back, then integers. The ZeRO paper, section 7, has the
multiples of P: 2 for DDP and Stages I and II, 3 for Stage III.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from zerosim.collectives import ALGORITHMS
from zerosim.model import Unit
from zerosim.recipe import Recipe
from zerosim.sharding import chunk_length, padded
from zerosim.stages import STAGES

NORM_BYTES = np.dtype(np.float64).itemsize
EXACT_MESSAGES = 3


@dataclass(frozen=True)
class Due:
    """What one rank's calls of a collective come to; `messages` are those sent."""

    calls: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    messages: int = 0

    def __add__(self, other: "Due") -> "Due":
        return Due(
            self.calls + other.calls, self.sent_bytes + other.sent_bytes,
            self.received_bytes + other.received_bytes, self.messages + other.messages,
        )

    def times(self, count: int) -> "Due":
        """So many times as much."""
        return Due(
            count * self.calls, count * self.sent_bytes, count * self.received_bytes, count * self.messages
        )


def due(recipe: Recipe, rank: int, updates: int) -> dict[str, Due]:
    """Of each collective that `rank` calls, in all steps, of which `updates` were not skipped."""
    row, publish = STAGES[recipe.stage], recipe.scenario.parallel.publish
    steps, ranks, weights = recipe.scenario.train.steps, recipe.scenario.world.ranks, recipe.precision.weights.itemsize
    passes = steps * (recipe.parts if recipe.part_by_part else 1)
    trained = [unit for unit in recipe.model.units if not unit.frozen]

    found = {"reduce_scatter": reductions(recipe, trained).times(passes), "all_gather": Due()}
    if recipe.sums_everywhere:
        found["all_gather"] += walks(trained, ranks, summed_bytes(recipe)).times(passes)
    if row.publishes and publish == "broadcasts":
        found["broadcast"] = broadcasts(trained, ranks, weights, rank).times(updates)
    elif row.publishes:
        found["all_gather"] += walks(trained, ranks, weights).times(updates)
    if row.gathers:
        found["all_gather"] += walks(gathered(recipe), ranks, weights).times(passes)
    if recipe.scaling().needs_norm and (row.publishes or row.gathers):
        norms = (ranks - 1) * len(trained) * NORM_BYTES
        found["gather_norms"] = Due(1, norms, norms, ranks - 1).times(steps)
    return {name: each for name, each in found.items() if each.calls}


def walks(units: Iterable[Unit], ranks: int, element_bytes: int, messages: int = 1) -> Due:
    """A collective through each of `units`, padded, each rank sending N − 1 of its chunks, in `messages` each."""
    total = Due()
    for unit in units:
        sent = chunk_length(unit.count, ranks) * (ranks - 1) * element_bytes
        total += Due(1, sent, sent, messages * (ranks - 1))
    return total


def reductions(recipe: Recipe, trained: Iterable[Unit]) -> Due:
    """A reduce-scatter of each unit's gradient."""
    ranks, integers = recipe.scenario.world.ranks, recipe.addition.sent_bytes
    if integers is None:
        return walks(trained, ranks, recipe.wire.itemsize)
    return walks(trained, ranks, integers, EXACT_MESSAGES)


def summed_bytes(recipe: Recipe) -> int:
    """Of each element of a sum of gradients: what the wire has, unless integers were added."""
    if recipe.addition.sent_bytes is None:
        return recipe.wire.itemsize
    wide = recipe.scenario.parallel.accumulate_dtype == "fp32"
    return np.dtype(np.float32).itemsize if wide else recipe.precision.weights.itemsize


def broadcasts(trained: Iterable[Unit], ranks: int, element_bytes: int, rank: int) -> Due:
    """A broadcast of every chunk of each unit from its owner."""
    copies = sum(ALGORITHMS["tree.broadcast"].messages(rank, ranks, root) for root in range(ranks))
    total = Due()
    for unit in trained:
        chunk = chunk_length(unit.count, ranks) * element_bytes
        total += Due(ranks, copies * chunk, (ranks - 1) * chunk, copies)
    return total


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
    sent = sum(each.sent_bytes for rank in range(ranks) for each in due(recipe, rank, steps).values()) / ranks / steps
    return sent / (whole * (ranks - 1) / ranks)


def most_messages(recipe: Recipe) -> int:
    """What the rank that sends the most sends in a step that is not skipped."""
    steps, ranks = recipe.scenario.train.steps, recipe.scenario.world.ranks
    if steps == 0:
        return 0
    return max(sum(each.messages for each in due(recipe, rank, steps).values()) for rank in range(ranks)) // steps
