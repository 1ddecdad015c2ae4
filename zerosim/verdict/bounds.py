"""A floor and a ceiling of each peak and of all operations, from the model's sizes and the papers' formulas.

Exact figures of peaks and operations come from the stages' own code on shapes, which cannot show a fault of that code.
These bounds run none of it: no tape, no plan of a graph, no stage. They are wide where a figure depends on details, so
that they catch what is counted, kept or computed a multiple of times, and never a right run.

    operations    a weight of P numbers takes 2P operations for each token forward, 2P for its gradient and 2P for its
                  input's; attention takes 4 s² a forward for each sequence, twice as many backward
    peaks         at least what rests between steps; weights at most those and two or three full units, gradients those
                  of the whole model, or a shard and some units, by the ZeRO paper's stages
    activations   at least each block's input (2 s b h bytes in 16 bits), at most what Korthikanti et al. count: of each
                  product its input and its output, for each head and token a row of the softmax; once more where
                  backward of the weights comes later; in 32 bits the gradient of a layer's output, and as work
                  arrays of backward four times those of the largest layer

Sources: Kaplan et al., "Scaling laws for neural language models" (2020), section 2.1; Korthikanti et al., "Reducing
activation recomputation in large transformer models" (2022), sections 4.1 and 5; Rajbhandari et al., "ZeRO" (2020).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby

from zerosim.core.allocation import MODEL_STATES
from zerosim.models.units import Model
from zerosim.training.config import Config
from zerosim.verdict.model_states import FP32_BYTES
from zerosim.verdict.pipelines import held_due
from zerosim.verdict.resting import later_uses, resting_bytes, shard

Between = dict[str, tuple[int, int]]
"""The least and the most of each figure."""
SENT, MOVED = "sent to tensor ranks", "moved between host and device"
WITH_FORMULAS = ("mlp", "transformer", "mixture")
"""The kinds of models whose products are known without their code."""
WORKING = 4
"""How many times the activations of the largest layer backward may have as work arrays: of y and x the gradients, and
of a function between them a slope and what it is computed from."""


@dataclass(frozen=True)
class Product:
    """A weight's product: the multiplications for a token, and the numbers of its input and output."""

    layer: int
    multiplications: float
    numbers: float
    trained: bool


def products(config: Config, model: Model) -> Iterator[Product]:
    """The products of a model with the weights of `model`: of all layers, or of one rank's."""
    keys, last = config.keys, config.keys.layer_count - 1
    served = of_each_expert(config)
    for unit in model.units:
        for place in unit.places:
            shape, layer, share = place.shape, place.layer, 1.0
            if len(shape) < 2:
                continue
            if model.task.tokens and layer == 0:
                if not (keys.tied and place is unit.places[0]):
                    continue
                layer = last
            if len(shape) == 3:
                share = served
            count = math.prod(shape) * share
            yield Product(layer, count, sum(shape[-2:]) * share * (shape[0] if len(shape) == 3 else 1), not unit.frozen)


def of_each_expert(config: Config) -> float:
    """The share of all tokens that an expert takes at most."""
    keys, tokens = config.keys, config.in_one_piece.task.inputs
    run = keys.queue_tokens or tokens
    return min(math.ceil(keys.capacity_factor * run * keys.experts_per_token / keys.experts), run) / run


def attention(config: Config) -> tuple[float, int]:
    """The multiplications of attention in a block for each token, and the heads' rows of a softmax."""
    keys = config.keys
    if keys.kind == "mlp":
        return 0.0, 0
    tokens, size = config.in_one_piece.task.inputs, keys.head_size or keys.width // keys.heads
    return tokens * keys.heads * (2 * size + keys.rotary_size), keys.heads * tokens


def operations_between(config: Config) -> Between:
    """The operations of matrix products of all ranks together in a run's steps; none of a user's model."""
    keys, model = config.keys, config.in_one_piece
    if keys.kind not in WITH_FORMULAS:
        return {}
    layers, weights = keys.layer_count, [*products(config, model)]
    lowest = min((number for unit in model.units if not unit.frozen for number in unit.numbers), default=layers)
    recomputed = {number for unit in config.recomputed for number in unit.numbers}
    blocks = [] if keys.kind == "mlp" else [*range(1, layers - 1)]
    scores = attention(config)[0]
    mixed = keys.experts_per_token * keys.width if keys.kind == "mixture" else 0

    def of_block(layer: int) -> float:
        return (scores + mixed * (layer > keys.dense_layers)) * (layer in blocks)

    of_layer = [
        sum(product.multiplications for product in weights if product.layer == layer) + of_block(layer)
        for layer in range(layers)]
    of_weights = sum(product.multiplications for product in weights if product.trained)
    of_inputs = sum(of_layer[lowest + 1 :]) + sum(map(of_block, range(lowest + 1, layers)))
    in_lowest = 2 * of_layer[lowest] if lowest < layers else 0
    again = scores / 2 * len(blocks) * (config.directions.context > 1)
    tokens = config.steps_here * config.samples * (model.task.inputs if model.task.tokens else 1)
    times, alike = 2 * tokens, config.directions.tensor
    forward, backward = sum(of_layer), of_weights + of_inputs
    return {
        "forward": (math.floor(times * forward), math.ceil(times * forward * alike)),
        "backward": (math.floor(times * backward), math.ceil(times * (backward + in_lowest + again) * alike)),
        "recomputation": (0, math.ceil(times * alike * sum(of_layer[layer] for layer in recomputed)))}


def tensor_bytes_between(config: Config) -> Between:
    """The bytes that each rank sends to tensor ranks in a run's steps, by Megatron-LM: four all-reduces a block.

    An all-reduce of b s h numbers is an all-gather and a reduce-scatter, each of (N − 1)/N of them. Recomputation
    repeats two; sequence parallelism gathers inputs again, and adds gradients of weights that are not cut; with a cut
    vocabulary ends communicate too, of each token also the maximum, the sum and the picked score. Only of a
    transformer whose attention has no latents: experts and latents are cut otherwise.
    """
    keys, ranks, parallel = config.keys, config.directions.tensor, config.parallel
    if keys.kind != "transformer" or keys.latent or config.directions.places != ranks or ranks == 1:
        return {}
    tokens = config.steps_here * config.block * config.train.micro_batch * config.in_one_piece.task.inputs
    half = tokens * keys.width * config.arithmetic.compute.itemsize * (ranks - 1) / ranks
    trained = all(not unit.frozen for unit in config.model.units)
    more = keys.layers * (4 * bool(config.recomputed) + 2 * parallel.sequence_parallel)
    more += 2 * keys.layers * parallel.partition_activations
    ends = 6 * (parallel.sequence_parallel or parallel.vocabulary_parallel)
    widest = 1 if config.arithmetic.products == config.arithmetic.compute else 2
    alike = parallel.sequence_parallel * sum(
        math.prod(place.shape) for unit in config.model.units for place in unit.places if not place.parameter.cut)
    most = half * (8 * keys.layers + more + ends + 16 / keys.width) + 2 * alike * (
        config.steps_here * config.block * config.arithmetic.compute.itemsize * (ranks - 1) / ranks)
    return {SENT: (math.floor(half * keys.layers * (8 if trained else 4)), math.ceil(widest * most))}


def moved_between(config: Config, updates: int) -> Between:
    """The bytes of model states that a rank copies to its host and back in a run's steps, with so many updates.

    ZeRO-Offload copies a shard's gradient down and its weights up for each update, but for updates that are published,
    which are no states; offloaded weights come up for each pass.
    """
    if not config.placement.on_host:
        return {}
    size, item = config.precision.weights.itemsize, max(config.precision.state.itemsize, FP32_BYTES)
    rounded = config.arithmetic
    narrow = min(size, *(dtype.itemsize for dtype in (rounded.compute, rounded.wire, rounded.accumulate)))
    mesh, optimizer = config.placement.mesh, "optimizer" in config.stage.sharded
    weights = sum(shard(unit.count, mesh) for unit in config.model.units)
    updated = sum(shard(unit.count, replace(mesh, group=mesh.group if optimizer else 1))
                  for unit in config.model.units if not unit.frozen)
    differs = config.rule.optimizer.of_matrix is not None or (
        config.stage.publishes and config.parallel.publish == "updates")
    least = weights * size * config.steps_here * config.passes if "parameters" in config.placement.on_host else (
        (2 - differs) * updated * narrow * updates)
    uses = max((later_uses(config.model, unit) + 1 for unit in config.model.units), default=0) + 1
    fetched = weights * uses * config.passes * ("parameters" in config.placement.on_host)
    most = config.steps_here * item * (updated * (config.reductions + 2) + fetched)
    return {MOVED: (least, most)}


def peaks_between(config: Config) -> Between:
    """The bytes of each kind at the peak on one rank; those of activations only of a shipped model."""
    resting, model, stage, parallel = resting_bytes(config), config.model, config.stage, config.parallel
    lengths = sorted((shard(unit.count, replace(config.placement.mesh, group=1)) for unit in model.units), reverse=True)
    whole, most = sum(lengths), lengths[0] if lengths else 0
    sums = config.arithmetic.accumulate, config.arithmetic.wire, config.precision.weights
    wide = max(dtype.itemsize for dtype in sums)
    near = {kind: 3 * most * FP32_BYTES for kind in MODEL_STATES if kind in config.placement.on_host}
    full = 0
    if stage.gathers:
        again = any(later_uses(model, unit) > 1 for unit in model.units)
        kept = whole if not parallel.reshard_after_forward or again else most
        full = (kept + most * (1 + parallel.prefetch)) * max(config.arithmetic.compute.itemsize, FP32_BYTES)
    later = config.at_once < config.block and not config.arithmetic.part_by_part
    at_end = "gradients" in stage.sharded and (later or config.whole is not None)
    terms = config.block // config.reductions if parallel.order in ("tree", "exact") else 0
    # The sum, a micro-batch's, and a working copy; of a unit that runs twice one of each micro-batch until it has both.
    contributions = 3 + under_way(config) * any(len(unit.segments) > 1 for unit in model.units)
    gradients = wide * (whole * (at_end + 2 * parallel.overlap + terms) + contributions * most)
    more = {"parameters": full, "gradients": gradients, "optimizer": 0}
    between: Between = {
        f"{kind} at the peak": (kept, kept + more[kind] + near.get(kind, 0)) for kind, kept in resting.items()}
    if config.keys.kind in WITH_FORMULAS:
        between["activations at the peak"] = activations_between(config)
    return between


def under_way(config: Config) -> int:
    """The micro-batches that run at once: one, all in layered accumulation, those of the schedule in a pipeline."""
    return config.at_once if config.whole is None else held_due(
        config.parallel.schedule, config.whole.of_pipeline.index(config), config.directions.pipeline, config.block,
        config.parallel.model_chunks)


def activations_between(config: Config) -> tuple[int, int]:
    """The bytes of activations at the peak on one rank.

    Gradients of weights are arrays of the graph, too, of weights that are cast, are experts' or belong to all ranks
    that share a micro-batch; casts of weights are kept for each micro-batch.
    """
    keys, model, task, parallel = config.keys, config.model, config.in_one_piece.task, config.parallel
    tokens = config.train.micro_batch * (task.inputs if task.tokens else 1)
    size = config.arithmetic.compute.itemsize
    numbers = [(product.layer, product.numbers) for product in products(config, model)]
    rows = attention(config)[1] * 2.5
    here = [number for unit in model.units for number in unit.numbers]
    blocks = [] if keys.kind == "mlp" else [number for number in here if 0 < number < keys.layer_count - 1]
    residual = 4 * keys.width * task.tokens
    of_layer = {layer: [count for at, count in numbers if at == layer] for layer in here}
    gated = keys.architecture == "llama"    # whose perceptron also has the gate's function
    kept = {layer: sum(counts) + (rows + gated * max(counts, default=0)) * (layer in blocks) + residual
            for layer, counts in of_layer.items()}
    alive = under_way(config)
    cast = config.arithmetic.products.itemsize * (config.arithmetic.products != config.arithmetic.compute)
    wide, later = max(size, FP32_BYTES), 1 + (parallel.schedule == "zb_h1")
    between = max(task.outputs, keys.width if task.tokens else max(task.inputs, *keys.hidden, 0))
    ceiling = tokens * (alive * ((size + cast) * later * sum(kept.values()) + wide * between)
                        + WORKING * wide * max(kept.values(), default=0))
    ceiling += alive * cast * sum(unit.count for unit in model.forward_units)
    if cast or config.directions.side_by_side > 1 or keys.kind == "mixture":
        ceiling += wide * max((stop - start for unit in model.units for start, stop in map(unit.bounds, unit.numbers)),
                              default=0)
    return floor_of_activations(config, size) * config.at_once, math.ceil(ceiling)


def floor_of_activations(config: Config, size: int) -> int:
    """The bytes of the inputs of blocks, or of layers, that a micro-batch keeps for backward; 0 if they are cut."""
    keys, model, parallel = config.keys, config.model, config.parallel
    if config.directions.places > 1 or parallel.offload_activations:
        return 0
    layers = sorted(number for unit in model.units for number in unit.numbers)
    frozen = {number for unit in model.units if unit.frozen for number in unit.numbers}
    lowest = next((number for number in layers if number not in frozen), len(layers))
    begun = {next(run)[1] for unit in config.recomputed for _, run in groupby(
        enumerate(sorted(unit.numbers)), lambda pair: pair[1] - pair[0])}
    inside = {number for unit in config.recomputed for number in unit.numbers} - begun
    kept = [number for number in layers if number > lowest and number not in inside]
    if keys.kind == "mlp":
        return size * config.train.micro_batch * sum(
            keys.hidden[number - 1] for number in kept if number not in frozen)
    return size * config.train.micro_batch * model.task.inputs * keys.width * len([
        number for number in kept if number < keys.layer_count - 1])
