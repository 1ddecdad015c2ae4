"""The most that may be alive on a rank within a step, by kind, by formula, for every stage and variant.

    parameters    what rests and, where weights are gathered: the unit in use, two of them with prefetch, all that
                  backward will use again where they are kept until then
    gradients     what rests of the units that are done, and one unit's contributions on their way to a sum
    optimizer     what rests
    activations   what backward needs of the layers up to the one it is in, ∂L/∂y of that one, and one operation's work
    buffers       what 16-bit operations widen, updates on their way, and, where a world copies them, messages

The peak of parameters and gradients is reached in every run, to the byte; the others are bounds.
"""

from itertools import pairwise

import numpy as np

from zerosim.allocation import Kind
from zerosim.collectives import ALGORITHMS
from zerosim.collectives.exact import EXPONENT_BYTES, LIMB_BYTES
from zerosim.model import Layer, Model, Unit
from zerosim.plan.memory import SHARDED
from zerosim.plan.resting import resting_bytes, unit_bytes
from zerosim.plan.traffic import NORM_BYTES, summed_bytes
from zerosim.recipe import Recipe
from zerosim.sharding import chunk_length, padded
from zerosim.stages import STAGES

FLOAT_BYTES = np.dtype(np.float32).itemsize
KEEPS_ITS_INPUT = "gelu"
"""The activation that keeps x for backward, beside y, which the next layer keeps; the others keep y."""


def peak_bounds(recipe: Recipe, stage: str | None = None, *, copies_messages: bool = False) -> dict[Kind, int]:
    """Bytes of each kind; of another stage, if one is named."""
    stage = stage or recipe.stage
    return {
        "parameters": parameters(recipe, stage),
        "gradients": gradients(recipe, stage),
        "optimizer": resting_bytes(recipe, stage).optimizer,
        "activations": activations(recipe),
        "buffers": widened(recipe) + pending(recipe, stage) + (messages(recipe) if copies_messages else 0),
    }


def would_fit(recipe: Recipe, stage: str, allowed_bytes: int) -> bool:
    """Whether the model states of a stage, and the units it has full at a time, are within `allowed_bytes`."""
    bounds = peak_bounds(recipe, stage)
    return bounds["optimizer"] + bounds["parameters"] + bounds["gradients"] <= allowed_bytes


def parameters(recipe: Recipe, stage: str) -> int:
    """Weights: shards and full units, or all of them full."""
    rests, parallel = resting_bytes(recipe, stage).parameters, recipe.scenario.parallel
    if "parameters" not in SHARDED[stage]:
        return rests
    full = {unit: full_bytes(recipe, unit) for unit in recipe.model.units}
    forward, backward = list(full), backward_units(recipe.model)
    if parallel.prefetch:
        uses = forward + backward
        return rests + max([full[uses[0]], *(full[now] + full[next_] for now, next_ in pairwise(uses))])
    if parallel.reshard_after_forward:
        return rests + max(full.values())
    passing = [full[unit] for unit in forward if unit not in backward]
    return rests + max([sum(full[unit] for unit in backward), *passing])


def full_bytes(recipe: Recipe, unit: Unit) -> int:
    """A unit's weights, padded."""
    return padded(unit.count, recipe.scenario.world.ranks) * recipe.precision.weights.itemsize


def backward_units(model: Model) -> list[Unit]:
    """Last first, down to the lowest that is trained."""
    return [unit for unit in reversed(model.units) if unit.layers[-1].index >= model.lowest_trained]


def gradients(recipe: Recipe, stage: str) -> int:
    """What the units that are done keep, and the one in work beside it."""
    done = resting_bytes(recipe, stage).gradients if by_parts(recipe, stage) else 0
    most = 0
    for unit in backward_units(recipe.model):
        if unit.frozen:
            continue
        most = max(most, done + in_work(recipe, stage, padded(unit.count, recipe.scenario.world.ranks)))
        if not by_parts(recipe, stage):
            done += unit_bytes(recipe, unit, stage)["gradients"][0]
    return most


def by_parts(recipe: Recipe, stage: str) -> bool:
    """Whether the stage goes forward and backward with each micro-batch by itself."""
    asked = recipe.scenario.parallel.accumulation == "micro_batch"
    return asked and STAGES[stage].may_reduce_parts and recipe.parts > 1


def at_once(recipe: Recipe, stage: str) -> int:
    """How many micro-batches of a rank go forward and backward together."""
    return 1 if by_parts(recipe, stage) else recipe.parts


def in_work(recipe: Recipe, stage: str, elements: int) -> int:
    """The most that is alive of one unit's gradient: while micro-batches add up, for the wire, or while it is kept."""
    narrow, wire = recipe.precision.weights.itemsize, recipe.wire.itemsize
    in_float32 = recipe.scenario.parallel.accumulate_dtype == "fp32"
    total = FLOAT_BYTES if in_float32 else narrow
    count = at_once(recipe, stage)
    order, exact = recipe.scenario.parallel.order, recipe.addition.collective is None

    adding = contributions(order, count) * total + (narrow if total != narrow else 0)
    sums = count * total if exact else total
    on_the_wire = total if exact else wire
    sending = sums + (on_the_wire if on_the_wire != total else 0)
    copies = FLOAT_BYTES * in_float32 + (narrow if on_the_wire != narrow else 0)
    if "gradients" in SHARDED[stage]:
        keeping = on_the_wire * elements + (on_the_wire + copies) * elements // recipe.scenario.world.ranks
    else:
        keeping = (on_the_wire + copies) * elements
    return max(adding * elements, sending * elements, keeping)


def contributions(order: str, count: int) -> int:
    """How many of `count` contributions are alive at a time: sums so far, and the next one.

    >>> [contributions(order, 8) for order in ("ring", "tree", "exact")]
    [2, 4, 8]
    """
    match order:
        case "exact":
            return count
        case "tree":
            return count.bit_length()
    return min(count, 2)


def activations(recipe: Recipe) -> int:
    """While a unit goes backward: all that is kept up to it, ∂L/∂y or ∂L/∂x, one operation's work, and the outputs.

    The outputs of the model live as long as the step's own name for them. Below what is trained nothing is kept: a
    unit's inputs and outputs are all there is.
    """
    count, rows = at_once(recipe, recipe.stage), recipe.scenario.train.micro_batch
    size, model = recipe.precision.weights.itemsize, recipe.model
    lowest = next((layer for layer in model.layers if layer.index == model.lowest_trained > 0), None)
    kept, most = lowest.inputs if lowest else 0, 0
    for unit in model.units:
        first, last = unit.layers[0], unit.layers[-1]
        passing = first.inputs + last.outputs
        if last.index >= model.lowest_trained:
            kept += sum(kept_elements(recipe, layer) for layer in unit.layers if layer is not model.layers[-1])
            passing = max(first.inputs, last.outputs)
        work = max(work_elements(layer) for layer in unit.layers) * work_bytes(recipe)
        most = max(most, (kept + passing + model.outputs) * count * size + work)
    return most * rows


def kept_elements(recipe: Recipe, layer: Layer) -> int:
    """Of one sample, beyond the layer's input: its output and, where the activation keeps it, what goes in there."""
    return layer.outputs * (2 if recipe.scenario.model.activation == KEEPS_ITS_INPUT else 1)


def work_elements(layer: Layer) -> int:
    """Of one sample: what one operation makes and lets go of, or hands on."""
    return layer.inputs + 2 * layer.outputs


def work_bytes(recipe: Recipe) -> int:
    """Of each of these: with 16 bits there is a wide array and a rounded one."""
    return FLOAT_BYTES + (recipe.precision.weights.itemsize if recipe.precision.mixed else 0)


def widened(recipe: Recipe) -> int:
    """What one operation on 16-bit arrays has in 32 bits: what comes in, what it kept, weights or their gradients."""
    if not recipe.precision.mixed:
        return 0
    rows = recipe.scenario.train.micro_batch
    return FLOAT_BYTES * max(
        max(rows * (layer.inputs + layer.outputs) + layer.count, 2 * rows * layer.outputs)
        for layer in recipe.model.layers
    )


def pending(recipe: Recipe, stage: str) -> int:
    """Updates of one unit, where these travel in place of weights."""
    if not STAGES[stage].publishes or recipe.scenario.parallel.publish != "updates":
        return 0
    return max((full_bytes(recipe, unit) for unit in recipe.model.units if not unit.frozen), default=0)


def messages(recipe: Recipe) -> int:
    """The most that copies of messages take, in a world that keeps them, one for each length, to use them again.

    A collective ends on a rank only when all others have begun it, and so have received all of the one before: at most
    the messages of two collectives are on their way, and one is arriving.
    """
    ranks = recipe.scenario.world.ranks
    if ranks == 1:
        return 0
    on_their_way = 2 * most_in_a_collective(recipe) + 1
    return sum(with_spare(length) for channel in message_lengths(recipe) for length in channel) * on_their_way


def most_in_a_collective(recipe: Recipe) -> int:
    """Messages that a rank sends in one; N broadcasts, one from each rank, count as one."""
    ranks, tree = recipe.scenario.world.ranks, ALGORITHMS["tree.broadcast"]
    if not STAGES[recipe.stage].publishes or recipe.scenario.parallel.publish != "broadcasts":
        return ranks - 1
    return max(sum(tree.messages(rank, ranks, root) for root in range(ranks)) for rank in range(ranks))


def with_spare(length: int) -> int:
    """At most so much memory is taken for a message of this many bytes."""
    return length + length // 4 + 1


def message_lengths(recipe: Recipe) -> tuple[set[int], set[int]]:
    """The lengths in bytes of all messages of a step, of what is prefetched apart from all others."""
    row, ranks, weights = STAGES[recipe.stage], recipe.scenario.world.ranks, recipe.precision.weights.itemsize
    trained = {chunk_length(unit.count, ranks) for unit in recipe.model.units if not unit.frozen}
    everything = {chunk_length(unit.count, ranks) for unit in recipe.model.units}
    reduced = {EXPONENT_BYTES, LIMB_BYTES} if recipe.addition.collective is None else {recipe.wire.itemsize}
    sizes = reduced | {summed_bytes(recipe)} | ({weights} if row.publishes else set())

    norms = NORM_BYTES * sum(not unit.frozen for unit in recipe.model.units)
    loss_and_norms = {EXPONENT_BYTES, FLOAT_BYTES, LIMB_BYTES, norms}
    step = {length * size for length in trained for size in sizes} | loss_and_norms
    gathered = {length * weights for length in everything} if row.gathers else set()
    return (step, gathered) if recipe.scenario.parallel.prefetch else (step | gathered, set())
