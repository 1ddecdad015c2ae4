"""The most that may be alive on a rank within a step, by kind, by formula, for every stage and variant.

    parameters    what rests and, where weights are gathered: the unit in use, two of them with prefetch, all that
                  backward will use again where they are kept until then
    gradients     what rests of the units that are done, of the others what this rank has added up of earlier
                  micro-batches, and one unit's contributions on their way to a sum; with overlap beside it all of the
                  unit before, which is being reduced
    optimizer     what rests
    activations   what backward needs of the units up to the one it is in, ∂L/∂y of that one, and one operation's work
    buffers       what 16-bit operations widen, updates on their way, what an order-free sum has in a bucket, and, where
                  a world copies them, messages

All of them are reached in every run, to the byte, but for buffers where messages are copied, and copies of gradients
that another thread makes and lets go of.

Two figures remain bounds. Buffers, where a world copies messages: a collective ends on a rank only when all others
have begun it, so at most the messages of two are on their way. Gradients that are rounded for the wire, or added in
no order, when overlap copies them beside the step. Both bounds fail a run that holds megabytes too much, and neither
would notice a few kilobytes.

Each row has fresh memory for messages. When the world's copies lived from row to row, a later row showed the buffers
of an earlier one.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

from zerosim.allocation import Kind
from zerosim.collectives import ALGORITHMS
from zerosim.collectives.exact import EXPONENT_BYTES, LIMB_BYTES
from zerosim.formulas.activations import pass_peaks
from zerosim.formulas.far import coming_while_reduced, far_parameters, staged_to_update
from zerosim.formulas.flows import flows
from zerosim.formulas.resting import FLOAT_BYTES, resting_bytes, unit_bytes
from zerosim.formulas.traffic import NORM_BYTES, summed_bytes
from zerosim.models.units import Unit
from zerosim.sharding import chunk_length, owned, padded
from zerosim.training.config import Config


def peak_bounds(config: Config, *, copies_messages: bool = False, updated: bool = True) -> dict[Kind, int]:
    """Bytes of each kind; `updated` says whether any step was not skipped."""
    within = pass_peaks(config)
    published = pending(config) if updated else 0
    adding, gathering = max(in_buckets(config), coded_gradients(config)), coded_weights(config)
    beside = adding if config.row.parallel.overlap and copies_messages else 0
    beside += gathering if config.row.parallel.prefetch and copies_messages else 0
    buffers = max(within.buffers + beside, published, adding, gathering)
    return {
        "parameters": parameters(config),
        "gradients": gradients(config),
        "optimizer": resting_bytes(config).optimizer,
        "activations": within.activations,
        "buffers": buffers + (message_copies(config) if copies_messages else 0),
    }


def needed_as_began(config: Config) -> dict[str, dict[Kind, int]]:
    """The most bytes that a step still needs of a kind as a reduction, or an update, of a unit begins.

    As gradients are reduced, full weights are gone; as weights are updated, so is all that backward needed, but for the
    last unit's outputs. Nothing is said where another thread may be about to let go of an array.
    """
    parallel, resting = config.row.parallel, resting_bytes(config)
    if parallel.prefetch or parallel.overlap:
        return {}
    updating: dict[Kind, int] = {
        "parameters": resting.parameters + staged_to_update(config), "gradients": resting.gradients,
        "activations": outputs_bytes(config)}
    reducing: dict[Kind, int] = {"parameters": resting.parameters + coming_while_reduced(config)}
    return {"update": updating} | (
        {"reduce_scatter": reducing} if parallel.reshard_after_forward else {})


def outputs_bytes(config: Config) -> int:
    """What a model makes of the micro-batches that go together."""
    task, samples = config.model.task, config.at_once * config.row.train.micro_batch
    return samples * (task.inputs if task.tokens else 1) * task.outputs * config.computing.weights.itemsize


def would_fit(config: Config, allowed_bytes: int) -> bool:
    """Whether the model states, and the units that are full at a time, are within `allowed_bytes`."""
    bounds = peak_bounds(config)
    return bounds["optimizer"] + bounds["parameters"] + bounds["gradients"] <= allowed_bytes


def parameters(config: Config) -> int:
    """Weights: shards and full units, or all of them full."""
    rests, parallel = resting_bytes(config).parameters, config.row.parallel
    if "parameters" not in config.stage.sharded:
        return rests
    if "parameters" in config.tiers:
        return rests + far_parameters(config)
    full = {unit: full_bytes(config, unit) for unit in config.model.units}
    forward, backward = config.model.forward_units, config.model.backward_units
    if parallel.prefetch:
        uses = forward + backward + (forward[:1] if backward and config.passes > 1 else ())
        return rests + max([full[uses[0]], *(full[now] + full[next_] for now, next_ in pairwise(uses))])
    if parallel.reshard_after_forward:
        return rests + max(full.values())
    passing = [full[unit] for unit in forward if unit not in backward]
    return rests + max([sum(full[unit] for unit in set(backward)), *passing])


def full_bytes(config: Config, unit: Unit) -> int:
    """A unit's weights as they are computed with, padded; its gradient of a micro-batch has as many."""
    return padded(unit.count, config.ranks) * config.computing.weights.itemsize


def gradients(config: Config) -> int:
    """What the units that are done keep, and the one in work beside it; with overlap, the one before that too."""
    most = overlapping if config.row.parallel.overlap else one_after_the_other
    if config.part_by_part:
        return most([replace(work, kept=0) for work in segments(config)], resting_bytes(config).gradients)
    last = config.passes - 1
    earlier = {0, max(last - 1, 0)} - {last}
    found = [one_after_the_other(segments(config, each), left(config, each)) for each in earlier]
    return max([*found, most(segments(config, last), left(config, last))])


def left(config: Config, earlier: int) -> int:
    """What a rank has of all units when it has added up `earlier` micro-batches, none of them reduced."""
    count = sum(padded(unit.count, config.ranks) for unit in config.model.units if not unit.frozen)
    return sums(config.row.parallel.order, earlier) * count * config.summed.itemsize


@dataclass(frozen=True)
class InWork:
    """Bytes of gradients that are alive at a time in a segment: its own, and what others have until theirs."""

    adding: int = 0
    """While micro-batches add up."""
    added: int = 0
    """When they have."""
    sending: int = 0
    """While it is reduced."""
    keeping: int = 0
    """While what is kept is made of the result."""
    earlier: int = 0
    """What earlier micro-batches left of its gradient; part of its own once they are added."""
    kept: int = 0
    waiting: int = 0
    """Everything that other units with segments to come hold."""


def one_after_the_other(works: Iterable[InWork], done: int) -> int:
    """The most that is alive where each unit's gradient is kept before the next one's is computed."""
    most = 0
    for work in works:
        done -= work.earlier
        most = max(most, done + work.waiting + max(work.adding, work.sending, work.keeping))
        done += work.kept
    return most


def overlapping(works: Iterable[InWork], done: int) -> int:
    """The most where it is reduced while the next one is computed, and kept then."""
    most = 0
    for before, now in pairwise([InWork(), *works, InWork()]):
        done -= now.earlier
        beside = max(before.sending + now.adding, before.keeping + now.added)
        most = max(most, done + now.waiting + beside)
        done += before.kept
        most = max(most, done + now.waiting + now.sending)
    return most


def segments(config: Config, earlier: int = 0) -> list[InWork]:
    """What each segment has in work behind `earlier` micro-batches; only a unit's last is reduced and kept."""
    found, unfinished = [], Counter[Unit]()
    for unit in config.model.backward_units:
        waiting = sum(held_back(config, each) for each in unfinished if each is not unit and unfinished[each])
        if unit.frozen:
            found.append(InWork(waiting=waiting))
            continue
        unfinished[unit] += 1
        if unfinished[unit] < len(unit.segments):
            held = held_back(config, unit)
            found.append(InWork(adding=held, added=held, waiting=waiting))
        else:
            found.append(replace(in_work(config, unit, earlier), waiting=waiting))
            unfinished[unit] = 0
    return found


def held_back(config: Config, unit: Unit) -> int:
    """A unit's gradients of all micro-batches, between its segments."""
    return config.at_once * full_bytes(config, unit)


def adding_up(config: Config) -> int:
    """The most bytes for each element while the contributions of all micro-batches, which are there, are added."""
    narrow, count = config.computing.weights.itemsize, config.at_once
    if not config.widens:
        return count * narrow
    order, wide = config.row.parallel.order, config.summed.itemsize
    return max((count - done) * narrow + (sums(order, done) + 1) * wide for done in range(count))


def sums(order: str, done: int) -> int:
    """How many sums there are after so many contributions."""
    match order:
        case "exact":
            return done
        case "tree":
            return done.bit_count()
    return min(done, 1)


def in_work(config: Config, unit: Unit, earlier: int) -> InWork:
    """What the last segment of a unit has in work, padding included."""
    elements = padded(unit.count, config.ranks)
    narrow, kept_in, wire = config.computing.weights, config.precision.weights, config.wire
    in_float32, total = config.accumulates_in_float32, config.summed.itemsize
    count = config.at_once
    order, exact = config.row.parallel.order, config.addition.collective is None

    before = sums(order, earlier) * total * elements
    adding = contributions(order, earlier, count) * total + (narrow.itemsize if config.widens else 0)
    if len(unit.segments) > 1:
        adding = max(adding, adding_up(config))
    if not config.part_by_part and earlier + count < config.block:
        after = sums(order, earlier + count) * total * elements
        return InWork(adding * elements, after, earlier=before, kept=after)
    added = (config.added_first if exact else 1) * total
    sent_in = config.summed if exact else wire
    sending = added + (sent_in.itemsize if sent_in != config.summed else 0)
    copies = FLOAT_BYTES * in_float32 + (kept_in.itemsize if sent_in != kept_in else 0)
    if "gradients" in config.stage.sharded:
        near = 0 if "gradients" in config.tiers else (sent_in.itemsize + copies) * elements // config.mesh.group
        keeping = sent_in.itemsize * elements + near
    else:
        keeping = (sent_in.itemsize + copies) * elements
    kept, _ = unit_bytes(config, unit)["gradients"]
    return InWork(adding * elements, added * elements, sending * elements, keeping, before, kept)


def gradients_are_exact(config: Config) -> bool:
    """Whether the peak of gradients is known to the byte: not where what is reduced beside the step makes copies."""
    in_place = config.addition.collective is not None and config.wire == config.summed
    return in_place or not config.row.parallel.overlap


def contributions(order: str, earlier: int, count: int) -> int:
    """How many arrays are alive as `count` contributions are added to `earlier` ones: sums so far, and the next one.

    >>> [contributions(order, 0, 8) for order in ("ring", "tree", "exact")]
    [2, 4, 8]
    >>> [contributions(order, 6, 1) for order in ("ring", "tree", "exact")]
    [2, 3, 7]
    """
    if order == "tree" and not earlier:
        return count.bit_length()
    return sums(order, earlier + count - 1) + 1


def pending(config: Config) -> int:
    """Updates of one unit, where these travel in place of weights."""
    if not config.stage.publishes or config.row.parallel.publish != "updates":
        return 0
    return max((full_bytes(config, unit) for unit in config.model.units if not unit.frozen), default=0)


def in_buckets(config: Config) -> int:
    """A bucket of all contributions, copied for a sum that wants vectors in one piece, where a unit needs several."""
    if config.addition.collective is not None:
        return 0
    row = config.ranks * LIMB_BYTES
    walked = [
        config.buckets.pieces(chunk_length(unit.count, config.ranks), row)
        for unit in config.model.units if not unit.frozen
    ]
    longest = max((pieces[0].stop for pieces in walked if len(pieces) > 1), default=0)
    return config.added_first * config.ranks * longest * config.summed.itemsize


def coded_gradients(config: Config) -> int:
    """A chunk's codes as they arrive, and those that leave or then what arrived, where gradients are quantised."""
    wire, mesh = config.gradients_wire, config.mesh
    if wire is None or mesh.group == 1:
        return 0
    chunks = [owned(unit.count, mesh).length for unit in config.model.units if not unit.frozen]
    return max((
        wire.encoded_bytes(chunk) + max(wire.encoded_bytes(chunk), chunk * config.wire.itemsize) for chunk in chunks
    ), default=0)


def coded_weights(config: Config) -> int:
    """Quantised shards of one unit, where its weights are gathered from these."""
    wire, mesh = config.weights_wire, config.mesh
    if wire is None:
        return 0
    return mesh.group * max(wire.encoded_bytes(owned(unit.count, mesh).length) for unit in config.model.units)


def message_copies(config: Config) -> int:
    """The most bytes that copies of messages take, in a world that keeps them, one for each length, to use them again.

    A collective ends on a rank only when all others have begun it, and so have received all of the one before: at most
    the messages of two collectives are on their way, and one is arriving.
    """
    ranks = config.ranks
    if ranks == 1:
        return 0
    on_their_way = 2 * most_in_a_collective(config) + 1
    known = sum(with_spare(length) for channel in message_lengths(config) for length in channel) * on_their_way
    return known + sum(with_spare(length) * (2 * often + 1) for length, often in named_messages(config).items())


def most_in_a_collective(config: Config) -> int:
    """Messages that a rank sends in one; the broadcasts of all buckets from each of the N ranks count as one."""
    ranks, tree, weights = config.mesh.group, ALGORITHMS["tree.broadcast"], config.precision.weights.itemsize
    if not config.stage.publishes or config.row.parallel.publish != "broadcasts":
        return max(ranks, config.mesh.replicas) - 1
    buckets = max(
        (len(config.buckets.pieces(owned(unit.count, config.mesh).length, weights)) for unit in config.model.units
         if not unit.frozen), default=1)
    return buckets * max(sum(tree.messages(rank, ranks, root) for root in range(ranks)) for rank in range(ranks))


def named_messages(config: Config) -> Counter[int]:
    """The lengths of messages in collectives that the scenario names, each with how many of it one of them sends."""
    size, found = config.mesh.group, Counter[int]()
    for kind in ("reduce_scatter", "all_gather", "broadcast"):
        algorithm = config.serving(kind)
        if algorithm is None:
            continue
        rooted = kind == "broadcast"
        for unit in config.model.units:
            for width in {config.precision.weights.itemsize, config.computing.weights.itemsize, config.wire.itemsize}:
                for piece in config.buckets.pieces(owned(unit.count, config.mesh).length, width * size):
                    count = (piece.stop - piece.start) * (1 if rooted else size)
                    for flow in flows(algorithm.at(size, width * count), size, count):
                        sent = Counter(width * length for _, length in flow.sent)
                        found |= Counter({length: often * (size if rooted else 1) for length, often in sent.items()})
    return found


def with_spare(length: int) -> int:
    """At most so much memory is taken for a message of this many bytes."""
    return length + length // 4 + 1


def message_lengths(config: Config) -> tuple[set[int], set[int]]:
    """The lengths in bytes of all messages of a step: those that the step sends itself, and those sent beside it."""
    stage, mesh, weights = config.stage, config.mesh, config.computing.weights.itemsize
    ranks = mesh.group
    trained = {owned(unit.count, mesh).length for unit in config.model.units if not unit.frozen}
    everything = {owned(unit.count, mesh).length for unit in config.model.units}
    norms = mesh.replicas * sum(not unit.frozen for unit in config.model.units)

    def walked(lengths: Iterable[int], *element_bytes: int, chunks: int = ranks) -> set[int]:
        """The lengths of messages whose elements have one of these sizes; the last, the largest, cuts buckets."""
        pieces = [p for length in lengths for p in config.buckets.pieces(length, chunks * element_bytes[-1])]
        return {(piece.stop - piece.start) * size for piece in pieces for size in element_bytes}

    exact = config.addition.collective is None
    reduced = walked(trained, EXPONENT_BYTES, LIMB_BYTES) if exact else walked(trained, config.wire.itemsize)
    if (codes := config.gradients_wire) is not None:
        reduced = walked({codes.encoded_bytes(length) for length in trained}, 1)
    reduced |= walked(trained, summed_bytes(config))
    if mesh.replicas > 1:
        parts = {chunk_length(unit.count, mesh.size) for unit in config.model.units if not unit.frozen}
        reduced |= walked(parts, config.wire.itemsize, chunks=mesh.replicas)
    gathered = walked(everything, weights) if stage.gathers else set()
    if (wire := config.weights_wire) is not None:
        gathered = walked({wire.encoded_bytes(length) for length in everything}, 1)
    if (copy := config.secondary_of(0)) is not None:
        gathered |= walked({owned(unit.count, copy).length for unit in config.model.units}, weights, chunks=copy.group)
    own = {EXPONENT_BYTES, config.precision.state.itemsize, LIMB_BYTES} | walked([norms], NORM_BYTES)
    if stage.publishes:
        by_one = config.row.parallel.publish == "broadcasts"
        own |= walked(trained, weights, chunks=1 if by_one else ranks)
    beside = set[int]()
    for lengths, aside in ((reduced, config.row.parallel.overlap), (gathered, config.row.parallel.prefetch)):
        own, beside = (own, beside | lengths) if aside else (own | lengths, beside)
    return own, beside
