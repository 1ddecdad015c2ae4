"""The messages that every rank must send and receive, by formula, for every stage and variant.

The formulas are derived from the collectives of a step and the messages of each over N ranks; nothing here observes a
run. All but the broadcast send N − 1 messages of a chunk and receive as many: n (N − 1)/N bytes of a vector of n bytes
in each direction. An order-free sum needs three of them: exponents twice, then integers. With buckets each of these
becomes several, with the same total bytes. The ZeRO paper, section 7, has the
multiples of P: 2 for DDP and Stages I and II, 3 for Stage III.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from zerosim.collectives import ALGORITHMS, Algorithm, exact
from zerosim.formulas.flows import flows
from zerosim.formulas.hosts import gathering, leaving, reducing, ring, tree_from_everyone
from zerosim.formulas.resting import later_uses
from zerosim.models.units import Unit
from zerosim.numerics.wires import BlockWire
from zerosim.sharding import Mesh, chunk_length, owned, padded
from zerosim.training.config import Config

NORM_BYTES = np.dtype(np.float64).itemsize


@dataclass(frozen=True)
class Due:
    """The traffic of one rank's calls of a collective; `messages` are those sent, `largest` the bytes of one of them.
    """

    calls: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    messages: int = 0
    between_bytes: int = 0
    """The sent bytes that leave the rank's host."""
    largest: int = field(default=0, compare=False)

    def __add__(self, other: "Due") -> "Due":
        return Due(
            self.calls + other.calls, self.sent_bytes + other.sent_bytes,
            self.received_bytes + other.received_bytes, self.messages + other.messages,
            self.between_bytes + other.between_bytes, max(self.largest, other.largest),
        )

    def times(self, count: int) -> "Due":
        """The traffic of `count` repetitions."""
        return Due(
            count * self.calls, count * self.sent_bytes, count * self.received_bytes, count * self.messages,
            count * self.between_bytes, min(count, 1) * self.largest,
        )


def due(config: Config, rank: int, updates: int, hosts: Sequence[int] = ()) -> dict[str, Due]:
    """The traffic of each collective that `rank` calls in a run's steps; `updates` of them were not skipped.

    `hosts` has the number of each rank's host; without it no bytes count as leaving a host.
    """
    stage, publish = config.stage, config.row.parallel.publish
    steps, weights = config.steps_here, config.computing.weights.itemsize
    passes, reductions_due = steps * config.passes, steps * config.reductions
    trained = [unit for unit in config.model.units if not unit.frozen]
    mesh, order, per_host = config.mesh_of(rank), config.row.parallel.order, config.row.ranks_per_host
    away = partial(leaving, ranks=mesh.neighbours, rank=rank, hosts=hosts)
    to_add, to_gather = away(reducing(order, per_host)), away(gathering(order, per_host))

    def gathers(units: Iterable[Unit], element_bytes: int) -> Due:
        named = config.serving("all_gather")
        if named is None:
            return walks(config, units, element_bytes, to_gather)
        return carried(config, named, mesh.neighbours, lengths(units), element_bytes, rank, hosts)

    def lengths(units: Iterable[Unit]) -> list[int]:
        return [owned(unit.count, config.mesh).length for unit in units]

    named = config.serving("reduce_scatter")
    added = (reductions(config, trained, to_add) if named is None
             else carried(config, named, mesh.neighbours, lengths(trained), config.wire.itemsize, rank, hosts))
    found = {"reduce_scatter": added.times(reductions_due), "all_gather": Due()}
    found["all_reduce"] = replicas_added(config, trained, rank, hosts).times(reductions_due)
    if config.sums_everywhere:
        found["all_gather"] += gathers(trained, summed_bytes(config)).times(reductions_due)
    if stage.publishes and publish == "broadcasts":
        by_name = config.serving("broadcast")
        told = (broadcasts(config, trained, weights, rank, away(tree_from_everyone)) if by_name is None
                else carried(config, by_name, mesh.neighbours, lengths(trained), weights, rank, hosts))
        found["broadcast"] = told.times(updates)
    elif stage.publishes:
        found["all_gather"] += gathers(trained, weights).times(updates)
    if stage.gathers:
        gathered_weights = (gathers(gathered(config), weights) if config.weights_wire is None
                            else quantized(config, config.weights_wire, gathered(config), to_gather))
        found["all_gather"] = gathered_weights.times(passes)
    if (copy := config.secondary_of(rank)) is not None:
        near = leaving(gathering(order, per_host), copy.neighbours, rank, hosts)
        found["all_gather"] += gathered_nearby(config, copy, near).times(passes)
    if config.scaling().needs_norm and stage.shares_updates:
        found["gather_norms"] = walk(config, mesh.replicas * len(trained), NORM_BYTES, away(ring)).times(steps)
    return {name: each for name, each in found.items() if each.calls}


def walk(
    config: Config, length: int, element_bytes: int, away: int = 0, widest: int = 0, messages: int = 1
) -> Due:
    """A collective of a group over chunks of `length`; each rank sends all but one of them, `away` of them to other
    hosts.

    An element is sent in `messages` messages; the largest has `widest` bytes of it. It runs bucket by bucket.
    """
    return round_the(config.mesh.group, config, length, element_bytes, away, widest, messages)


def round_the(
    size: int, config: Config, length: int, element_bytes: int, away: int = 0, widest: int = 0, messages: int = 1
) -> Due:
    """A collective among `size` ranks over chunks of `length`, as in `walk`."""
    others, widest = size - 1, widest or element_bytes
    pieces = config.buckets.pieces(length, size * widest)
    sent = length * others * element_bytes
    longest = (pieces[0].stop - pieces[0].start) * widest
    between = length * away * element_bytes
    return Due(len(pieces), sent, sent, len(pieces) * messages * others, between, longest * min(others, 1))


def walks(
    config: Config, units: Iterable[Unit], element_bytes: int, away: int = 0, widest: int = 0, messages: int = 1
) -> Due:
    """A walk over each of `units`, padded."""
    lengths = [owned(unit.count, config.mesh).length for unit in units]
    return sum((walk(config, length, element_bytes, away, widest, messages) for length in lengths), Due())


def quantized(config: Config, wire: BlockWire, units: Iterable[Unit], away: int) -> Due:
    """A walk over each of `units`, whose chunks are sent as scales and codes."""
    messages = [wire.encoded_bytes(owned(unit.count, config.mesh).length) for unit in units]
    return sum((walk(config, message, 1, away) for message in messages), Due())


def reductions(config: Config, trained: Iterable[Unit], away: int) -> Due:
    """A reduce-scatter of each unit's gradient."""
    if config.gradients_wire is not None:
        return quantized(config, config.gradients_wire, trained, away)
    if config.addition.collective is not None:
        return walks(config, trained, config.wire.itemsize, away)
    summed = config.summed
    return walks(config, trained, exact.sent_bytes(summed), away, exact.LIMB_BYTES, exact.messages(summed))


def replicas_added(config: Config, trained: Iterable[Unit], rank: int, hosts: Sequence[int]) -> Due:
    """An all-reduce of each unit's shard over the ranks that hold copies of it: two walks over its chunks."""
    replicas, total = config.mesh.replicas, Due()
    if replicas == 1:
        return total
    copies, order, size = config.mesh_of(rank).copies, config.row.parallel.order, config.wire.itemsize
    lengths, named = [chunk_length(unit.count, config.ranks) for unit in trained], config.serving("reduce_scatter")
    halves = [ring] if named else [reducing(order, 0), ring]
    for length in lengths:
        for away in (leaving(peers, copies, rank, hosts) for peers in halves):
            total += round_the(replicas, config, length, size, away)
    return total + carried(config, named, copies, lengths, size, rank, hosts) if named else total


def carried(
    config: Config, algorithm: Algorithm, ranks: Sequence[int], lengths: Iterable[int], element_bytes: int, rank: int,
    hosts: Sequence[int],
) -> Due:
    """A collective that the scenario names, among `ranks` over chunks of each length: its messages in a run alone."""
    total, rooted = Due(), algorithm.collective == "broadcast"
    for length in lengths:
        for piece in config.buckets.pieces(length, element_bytes * (1 if rooted else len(ranks))):
            count = (piece.stop - piece.start) * (1 if rooted else len(ranks))
            for root in range(len(ranks) if rooted else 1):
                serving = algorithm.at(len(ranks), count * element_bytes)
                flow = flows(serving, len(ranks), count, root)[ranks.index(rank)]
                sent = [sent for _, sent in flow.sent]
                away = sum(sent for to, sent in flow.sent if hosts and hosts[ranks[to]] != hosts[rank])
                total += Due(1, sum(sent) * element_bytes, flow.received * element_bytes, len(sent),
                             away * element_bytes, max(sent, default=0) * element_bytes)
    return total


def summed_bytes(config: Config) -> int:
    """The bytes of each element of a sum of gradients: those of the wire, unless integers were added."""
    return (config.wire if config.addition.collective is not None else config.summed).itemsize


def broadcasts(config: Config, trained: Iterable[Unit], element_bytes: int, rank: int, away: int) -> Due:
    """A broadcast of every chunk of each unit from its owner, bucket by bucket."""
    ranks, tree, place = config.mesh.group, ALGORITHMS["tree.broadcast"], config.mesh_of(rank).place
    copies = sum(tree.messages(place, ranks, root) for root in range(ranks))
    total = Due()
    for unit in trained:
        length = owned(unit.count, config.mesh).length
        pieces, chunk = config.buckets.pieces(length, element_bytes), length * element_bytes
        longest = (pieces[0].stop - pieces[0].start) * element_bytes * min(copies, 1)
        total += Due(
            len(pieces) * ranks, copies * chunk, (ranks - 1) * chunk, len(pieces) * copies, away * chunk, longest)
    return total


def gathered(config: Config) -> tuple[Unit, ...]:
    """The units whose weights Stage III gathers in a part, in forward and backward."""
    if config.secondary_of(0) is not None:
        return tuple(dict.fromkeys(config.model.forward_units))
    if config.row.parallel.reshard_after_forward:
        return config.model.forward_units + config.model.backward_units
    return tuple(gathered_once(config))


def gathered_nearby(config: Config, copy: Mesh, away: int) -> Due:
    """A walk over the second copy for each later use of a unit in a part."""
    total, weights = Due(), config.computing.weights.itemsize
    for unit in config.model.units:
        walked = round_the(copy.group, config, owned(unit.count, copy).length, weights, away)
        total += walked.times(later_uses(config.model, unit))
    return total


def gathered_once(config: Config) -> Iterator[Unit]:
    """The units whose weights are gathered if gathered weights stay until backward has used them once."""
    kept: set[Unit] = set()
    for unit in config.model.forward_units:
        if unit not in kept:
            yield unit
        if unit in config.model.backward_units:
            kept.add(unit)
    for unit in config.model.backward_units:
        if unit not in kept:
            yield unit
        kept.discard(unit)


def volume(config: Config) -> float:
    """The bytes sent per rank and step, the mean over ranks, in units of P (N − 1)/N; P: bytes of all weights."""
    config = replace(config, resumed=None)
    ranks, steps = config.ranks, config.steps
    if ranks == 1 or steps == 0:
        return 0.0
    whole = sum(padded(unit.count, ranks) for unit in config.model.units) * config.precision.weights.itemsize
    sent = sum(each.sent_bytes for rank in range(ranks) for each in due(config, rank, steps).values()) / ranks / steps
    return sent / (whole * (ranks - 1) / ranks)


def most_messages(config: Config) -> int:
    """The messages in a step that is not skipped, of the rank that sends the most."""
    config = replace(config, resumed=None)
    steps, ranks = config.steps, config.ranks
    if steps == 0:
        return 0
    return max(sum(each.messages for each in due(config, rank, steps).values()) for rank in range(ranks)) // steps
