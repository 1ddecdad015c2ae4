"""The most that may be alive on a rank within a step, by kind, by formula, for every stage and variant.

    parameters    what rests and, where weights are gathered: the unit in use, two of them with prefetch, all that
                  backward will use again where they are kept until then
    gradients     what rests of the units that are done, and one unit's contributions on their way to a sum; with
                  overlap beside it all of the unit before, which is being reduced
    optimizer     what rests
    activations   what backward needs of the layers up to the one it is in, ∂L/∂y of that one, and one operation's work
    buffers       what 16-bit operations widen, updates on their way, and, where a world copies them, messages

The peak of parameters and gradients is reached in every run, to the byte, but for copies that another thread makes and
lets go of; the others are bounds.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

from zerosim.allocation import Kind
from zerosim.collectives import ALGORITHMS
from zerosim.collectives.exact import EXPONENT_BYTES, LIMB_BYTES
from zerosim.models.units import Layer, Unit
from zerosim.plan.resting import FLOAT_BYTES, resting_bytes, unit_bytes
from zerosim.plan.traffic import NORM_BYTES, summed_bytes
from zerosim.sharding import chunk_length, padded
from zerosim.training.config import Config


def peak_bounds(config: Config, *, copies_messages: bool = False) -> dict[Kind, int]:
    """Bytes of each kind."""
    return {
        "parameters": parameters(config),
        "gradients": gradients(config),
        "optimizer": resting_bytes(config).optimizer,
        "activations": activations(config),
        "buffers": widened(config) + pending(config) + (message_copies(config) if copies_messages else 0),
    }


def would_fit(config: Config, allowed_bytes: int) -> bool:
    """Whether the model states, and the units that are full at a time, are within `allowed_bytes`."""
    bounds = peak_bounds(config)
    return bounds["optimizer"] + bounds["parameters"] + bounds["gradients"] <= allowed_bytes


def parameters(config: Config) -> int:
    """Weights: shards and full units, or all of them full."""
    rests, parallel = resting_bytes(config).parameters, config.row.parallel
    if "parameters" not in config.stage.sharded:
        return rests
    full = {unit: full_bytes(config, unit) for unit in config.model.units}
    forward, backward = config.model.units, config.model.backward_units
    if parallel.prefetch:
        uses = forward + backward
        return rests + max([full[uses[0]], *(full[now] + full[next_] for now, next_ in pairwise(uses))])
    if parallel.reshard_after_forward:
        return rests + max(full.values())
    passing = [full[unit] for unit in forward if unit not in backward]
    return rests + max([sum(full[unit] for unit in backward), *passing])


def full_bytes(config: Config, unit: Unit) -> int:
    """A unit's weights, padded."""
    return padded(unit.count, config.ranks) * config.precision.weights.itemsize


def gradients(config: Config) -> int:
    """What the units that are done keep, and the one in work beside it; with overlap, the one before that too."""
    works = [InWork() if unit.frozen else in_work(config, unit) for unit in config.model.backward_units]
    done = 0
    if config.part_by_part:
        works, done = [replace(work, kept=0) for work in works], resting_bytes(config).gradients
    return overlapping(works, done) if config.row.parallel.overlap else one_after_the_other(works, done)


@dataclass(frozen=True)
class InWork:
    """Bytes of one unit's gradient that are alive at a time."""

    adding: int = 0
    """While micro-batches add up."""
    added: int = 0
    """When they have."""
    sending: int = 0
    """While it is reduced."""
    keeping: int = 0
    """While what is kept is made of the result."""
    kept: int = 0


def one_after_the_other(works: Iterable[InWork], done: int) -> int:
    """The most that is alive where each unit's gradient is kept before the next one's is computed."""
    most = 0
    for work in works:
        most = max(most, done + max(work.adding, work.sending, work.keeping))
        done += work.kept
    return most


def overlapping(works: Iterable[InWork], done: int) -> int:
    """The most where it is reduced while the next one is computed, and kept then."""
    most = 0
    for before, now in pairwise([InWork(), *works, InWork()]):
        most = max(most, done + before.sending + now.adding, done + before.keeping + now.added)
        done += before.kept
        most = max(most, done + now.sending)
    return most


def in_work(config: Config, unit: Unit) -> InWork:
    """Of one unit, padding included."""
    elements = padded(unit.count, config.ranks)
    narrow, wire = config.precision.weights.itemsize, config.wire.itemsize
    in_float32 = config.accumulates_in_float32
    total = FLOAT_BYTES if in_float32 else narrow
    count = config.at_once
    order, exact = config.row.parallel.order, config.addition.collective is None

    adding = contributions(order, count) * total + (narrow if total != narrow else 0)
    added = (count if exact else 1) * total
    on_the_wire = total if exact else wire
    sending = added + (on_the_wire if on_the_wire != total else 0)
    copies = FLOAT_BYTES * in_float32 + (narrow if on_the_wire != narrow else 0)
    if "gradients" in config.stage.sharded:
        keeping = on_the_wire * elements + (on_the_wire + copies) * elements // config.ranks
    else:
        keeping = (on_the_wire + copies) * elements
    kept, _ = unit_bytes(config, unit)["gradients"]
    return InWork(adding * elements, added * elements, sending * elements, keeping, kept)


def gradients_are_exact(config: Config) -> bool:
    """Whether the peak of gradients is known to the byte: not where what is reduced beside the step makes copies."""
    total = FLOAT_BYTES if config.accumulates_in_float32 else config.precision.weights.itemsize
    in_place = config.addition.collective is not None and config.wire.itemsize == total
    return in_place or not config.row.parallel.overlap


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


def activations(config: Config) -> int:
    """While a unit goes backward: all that is kept up to it, ∂L/∂y or ∂L/∂x, one operation's work, and the outputs.

    The outputs of the model live as long as the step's own name for them. Below what is trained nothing is kept: a
    unit's inputs and outputs are all there is.
    """
    count, samples = config.at_once, config.row.train.micro_batch
    size, model = config.precision.weights.itemsize, config.model
    lowest = next((layer for layer in model.layers if layer.index == model.lowest_trained > 0), None)
    kept, most = lowest.inputs if lowest else 0, 0
    for unit in model.units:
        first, last = unit.layers[0], unit.layers[-1]
        passing = first.inputs + last.outputs
        if last.index >= model.lowest_trained:
            kept += sum(kept_elements(layer) for layer in unit.layers if layer is not model.layers[-1])
            passing = max(first.inputs, last.outputs)
        work = max(work_elements(layer) for layer in unit.layers) * work_bytes(config)
        most = max(most, (kept + passing + model.outputs) * count * size + work)
    return most * samples


def kept_elements(layer: Layer) -> int:
    """Of one sample, beyond the layer's input: its output and, where the activation keeps it, what goes in there."""
    return layer.outputs * (1 + sum(operation.keeps_x for operation in layer.operations[1:]))


def work_elements(layer: Layer) -> int:
    """Of one sample: what one operation makes and lets go of, or hands on."""
    return layer.inputs + 2 * layer.outputs


def work_bytes(config: Config) -> int:
    """Of each of these: with 16 bits there is a wide array and a rounded one."""
    return FLOAT_BYTES + (config.precision.weights.itemsize if config.precision.mixed else 0)


def widened(config: Config) -> int:
    """What one operation on 16-bit arrays has in 32 bits: what comes in, what it kept, weights or their gradients."""
    if not config.precision.mixed:
        return 0
    samples = config.row.train.micro_batch
    return FLOAT_BYTES * max(
        max(samples * (layer.inputs + layer.outputs) + layer.count, 2 * samples * layer.outputs)
        for layer in config.model.layers
    )


def pending(config: Config) -> int:
    """Updates of one unit, where these travel in place of weights."""
    if not config.stage.publishes or config.row.parallel.publish != "updates":
        return 0
    return max((full_bytes(config, unit) for unit in config.model.units if not unit.frozen), default=0)


def message_copies(config: Config) -> int:
    """The most bytes that copies of messages take, in a world that keeps them, one for each length, to use them again.

    A collective ends on a rank only when all others have begun it, and so have received all of the one before: at most
    the messages of two collectives are on their way, and one is arriving.
    """
    ranks = config.ranks
    if ranks == 1:
        return 0
    on_their_way = 2 * most_in_a_collective(config) + 1
    return sum(with_spare(length) for channel in message_lengths(config) for length in channel) * on_their_way


def most_in_a_collective(config: Config) -> int:
    """Messages that a rank sends in one; N broadcasts, one from each rank, count as one."""
    ranks, tree = config.ranks, ALGORITHMS["tree.broadcast"]
    if not config.stage.publishes or config.row.parallel.publish != "broadcasts":
        return ranks - 1
    return max(sum(tree.messages(rank, ranks, root) for root in range(ranks)) for rank in range(ranks))


def with_spare(length: int) -> int:
    """At most so much memory is taken for a message of this many bytes."""
    return length + length // 4 + 1


def message_lengths(config: Config) -> tuple[set[int], set[int]]:
    """The lengths in bytes of all messages of a step: those that the step sends itself, and those sent beside it."""
    stage, ranks, weights = config.stage, config.ranks, config.precision.weights.itemsize
    parallel = config.row.parallel
    trained = {chunk_length(unit.count, ranks) for unit in config.model.units if not unit.frozen}
    everything = {chunk_length(unit.count, ranks) for unit in config.model.units}
    added = {EXPONENT_BYTES, LIMB_BYTES} if config.addition.collective is None else {config.wire.itemsize}
    sizes = added | {summed_bytes(config)}

    norms = NORM_BYTES * sum(not unit.frozen for unit in config.model.units)
    loss_and_norms = {EXPONENT_BYTES, FLOAT_BYTES, LIMB_BYTES, norms}
    published = {length * weights for length in trained} if stage.publishes else set()
    reduced = {length * size for length in trained for size in sizes}
    gathered = {length * weights for length in everything} if stage.gathers else set()
    own, beside = loss_and_norms | published, set[int]()
    for lengths, aside in ((reduced, parallel.overlap), (gathered, parallel.prefetch)):
        own, beside = (own, beside | lengths) if aside else (own | lengths, beside)
    return own, beside
