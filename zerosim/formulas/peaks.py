"""The allowed peak of a rank's memory within a step, by kind, by formula, for every stage and variant.

    parameters    the resting ones and, if weights are gathered: the unit in use, two of them with prefetch, all units
                  that backward will use again if they are kept until then
    gradients     the resting ones of finished units, this rank's sums over earlier micro-batches for the others, and
                  one unit's contributions to a sum; with overlap also those of the previous unit, which is being
                  reduced
    optimizer     the resting ones
    activations   the arrays that backward needs up to the present unit, ∂L/∂y of that one, and one operation's work
    buffers       widened 16-bit arrays of operations, updates to be sent, an order-free sum's bucket, and, if
                  a world copies them, messages

Every run reaches all of them, to the byte, except buffers if messages are copied, and copies of gradients that
another thread makes and frees.

Two figures remain bounds. Buffers, if a world copies messages: a collective ends on a rank only when all others
have begun it, so at most the messages of two are in flight. Gradients that are rounded for the wire, or added in
no order, when overlap copies them during the step. Both bounds fail a run that holds megabytes too much, and neither
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
    """The allowed peak of each kind in bytes; `updated` says whether any step was not skipped."""
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
    """The most bytes of each kind that a step still needs when the reduction, or the update, of a unit begins.

    When gradients are reduced, full weights have been freed; when weights are updated, so have all arrays of backward,
    except the last unit's outputs. There are no figures with prefetch or overlap, where another thread frees arrays.
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
    """The bytes of a model's outputs for the micro-batches of a pass."""
    task, samples = config.model.task, config.at_once * config.row.train.micro_batch
    return samples * (task.inputs if task.tokens else 1) * task.outputs * config.computing.weights.itemsize


def would_fit(config: Config, allowed_bytes: int) -> bool:
    """Whether the model states, and the units that are full at a time, fit in `allowed_bytes`."""
    bounds = peak_bounds(config)
    return bounds["optimizer"] + bounds["parameters"] + bounds["gradients"] <= allowed_bytes


def parameters(config: Config) -> int:
    """The peak of weights: shards and full units, or all of them full."""
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
    """The bytes of a unit's weights in the dtype of computation, padded; its gradient of a micro-batch has as many."""
    return padded(unit.count, config.ranks) * config.computing.weights.itemsize


def gradients(config: Config) -> int:
    """The peak of gradients: those kept for finished units, and the unit in work; with overlap, the previous one too.
    """
    most = overlapping if config.row.parallel.overlap else one_after_the_other
    if config.part_by_part:
        return most([replace(work, kept=0) for work in segments(config)], resting_bytes(config).gradients)
    last = config.passes - 1
    earlier = {0, max(last - 1, 0)} - {last}
    found = [one_after_the_other(segments(config, each), left(config, each)) for each in earlier]
    return max([*found, most(segments(config, last), left(config, last))])


def left(config: Config, earlier: int) -> int:
    """The bytes of a rank's sums over `earlier` micro-batches, none of them reduced, for all units."""
    count = sum(padded(unit.count, config.ranks) for unit in config.model.units if not unit.frozen)
    return sums(config.row.parallel.order, earlier) * count * config.summed.itemsize


@dataclass(frozen=True)
class InWork:
    """The bytes of gradients that are alive in each phase of a segment, and those of other units meanwhile."""

    adding: int = 0
    """The bytes while micro-batches are added."""
    added: int = 0
    """The bytes after that."""
    sending: int = 0
    """The bytes while the gradient is reduced."""
    keeping: int = 0
    """The bytes while the kept gradient is made from the result."""
    earlier: int = 0
    """The bytes that earlier micro-batches left of its gradient; part of its own once they are added."""
    kept: int = 0
    waiting: int = 0
    """The bytes of other units with segments still to come."""


def one_after_the_other(works: Iterable[InWork], done: int) -> int:
    """The peak if each unit's gradient is kept before the next one's is computed."""
    most = 0
    for work in works:
        done -= work.earlier
        most = max(most, done + work.waiting + max(work.adding, work.sending, work.keeping))
        done += work.kept
    return most


def overlapping(works: Iterable[InWork], done: int) -> int:
    """The peak if each unit's gradient is reduced while the next one is computed, and then kept."""
    most = 0
    for before, now in pairwise([InWork(), *works, InWork()]):
        done -= now.earlier
        beside = max(before.sending + now.adding, before.keeping + now.added)
        most = max(most, done + now.waiting + beside)
        done += before.kept
        most = max(most, done + now.waiting + now.sending)
    return most


def segments(config: Config, earlier: int = 0) -> list[InWork]:
    """The memory of each segment after `earlier` micro-batches; only a unit's last segment is reduced and kept."""
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
    """The bytes of a unit's gradients of all micro-batches, between its segments."""
    return config.at_once * full_bytes(config, unit)


def adding_up(config: Config) -> int:
    """The peak of bytes per element while the contributions of all micro-batches are added."""
    narrow, count = config.computing.weights.itemsize, config.at_once
    if not config.widens:
        return count * narrow
    order, wide = config.row.parallel.order, config.summed.itemsize
    return max((count - done) * narrow + (sums(order, done) + 1) * wide for done in range(count))


def sums(order: str, done: int) -> int:
    """The number of sums after `done` contributions."""
    match order:
        case "exact":
            return done
        case "tree":
            return done.bit_count()
    return min(done, 1)


def in_work(config: Config, unit: Unit, earlier: int) -> InWork:
    """The memory of the last segment of a unit, padding included."""
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
    """Whether the peak of gradients is known exactly: not if a reduction during the step makes copies."""
    in_place = config.addition.collective is not None and config.wire == config.summed
    return in_place or not config.row.parallel.overlap


def contributions(order: str, earlier: int, count: int) -> int:
    """The number of arrays alive while `count` contributions are added to `earlier` ones: sums so far, and the next
    one.

    >>> [contributions(order, 0, 8) for order in ("ring", "tree", "exact")]
    [2, 4, 8]
    >>> [contributions(order, 6, 1) for order in ("ring", "tree", "exact")]
    [2, 3, 7]
    """
    if order == "tree" and not earlier:
        return count.bit_length()
    return sums(order, earlier + count - 1) + 1


def pending(config: Config) -> int:
    """The bytes of one unit's updates, if updates are sent in place of weights."""
    if not config.stage.publishes or config.row.parallel.publish != "updates":
        return 0
    return max((full_bytes(config, unit) for unit in config.model.units if not unit.frozen), default=0)


def in_buckets(config: Config) -> int:
    """The bytes of one bucket of all contributions, copied for an order-free sum if a unit needs several buckets."""
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
    """The bytes of a chunk's codes as they arrive, and of those that are sent or of the decoded chunk, if quantised."""
    wire, mesh = config.gradients_wire, config.mesh
    if wire is None or mesh.group == 1:
        return 0
    chunks = [owned(unit.count, mesh).length for unit in config.model.units if not unit.frozen]
    return max((
        wire.encoded_bytes(chunk) + max(wire.encoded_bytes(chunk), chunk * config.wire.itemsize) for chunk in chunks
    ), default=0)


def coded_weights(config: Config) -> int:
    """The bytes of one unit's quantised shards, if its weights are gathered as codes."""
    wire, mesh = config.weights_wire, config.mesh
    if wire is None:
        return 0
    return mesh.group * max(wire.encoded_bytes(owned(unit.count, mesh).length) for unit in config.model.units)


def message_copies(config: Config) -> int:
    """The most bytes of copies of messages, in a world that keeps them, by length, for reuse.

    A collective ends on a rank only when all others have begun it, and so have received all messages of the previous
    one: at most the messages of two collectives are in flight, and one is arriving.
    """
    ranks = config.ranks
    if ranks == 1:
        return 0
    on_their_way = 2 * most_in_a_collective(config) + 1
    known = sum(with_spare(length) for channel in message_lengths(config) for length in channel) * on_their_way
    return known + sum(with_spare(length) * (2 * often + 1) for length, often in named_messages(config).items())


def most_in_a_collective(config: Config) -> int:
    """The messages that a rank sends in one collective; the broadcasts of all buckets from each of the N ranks count as
    one."""
    ranks, tree, weights = config.mesh.group, ALGORITHMS["tree.broadcast"], config.precision.weights.itemsize
    if not config.stage.publishes or config.row.parallel.publish != "broadcasts":
        return max(ranks, config.mesh.replicas) - 1
    buckets = max(
        (len(config.buckets.pieces(owned(unit.count, config.mesh).length, weights)) for unit in config.model.units
         if not unit.frozen), default=1)
    return buckets * max(sum(tree.messages(rank, ranks, root) for root in range(ranks)) for rank in range(ranks))


def named_messages(config: Config) -> Counter[int]:
    """The lengths of messages in collectives that the scenario names, with the number of each in one collective."""
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
    """The most memory that is allocated for a message of `length` bytes."""
    return length + length // 4 + 1


def message_lengths(config: Config) -> tuple[set[int], set[int]]:
    """The lengths in bytes of all messages of a step: those of the step's own channel, and those of the second channel.
    """
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
