"""The messages that every rank must send and receive.

Which collectives a stage needs, over which elements and how often, is stated here and derived from no stage's code. The
messages of one collective are those of its closed form, see `flows`. Only which collectives a model calls on the tape,
and over how many elements, follows the model's own code on shapes. All but the broadcast send N − 1 messages of a
chunk and receive as many: n (N − 1)/N bytes of a vector of n bytes in each direction. An order-free sum needs three of
them: exponents twice, then integers. With buckets each of these becomes several, with the same total bytes. The ZeRO
paper, section 7, has the multiples of P: 2 for DDP and Stages I and II, 3 for Stage III.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from zerosim.collectives import ALGORITHMS, Algorithm, ring
from zerosim.collectives.exact import EXPONENT_BYTES, LIMB_BYTES
from zerosim.core.extents import Extent
from zerosim.core.fixed_point import limbs
from zerosim.core.sharding import Directions, Mesh
from zerosim.core.wires import Format
from zerosim.models.units import Unit
from zerosim.observe.observed import Observed
from zerosim.observe.traffic import Count
from zerosim.training.config import Config
from zerosim.training.groups import GroupOfRanks
from zerosim.verdict.flows import Flow, LoneRank, disproved, flow
from zerosim.verdict.resting import later_uses, shard
from zerosim.verdict.shapes import TapeCall, expected

ON_THE_TAPE = {name: ALGORITHMS[f"{of}.{name}"] for name, of in {
    "all_reduce": "ring", "reduce_scatter": "ring", "all_gather": "ring", "all_to_all": "direct"}.items()}
"""The algorithms of the collectives on the tape."""
NORM_BYTES = np.dtype(np.float64).itemsize

CollectivePart = tuple[Callable[..., None], int]
"""A collective, and the bytes of an element."""


@dataclass(frozen=True)
class DueCall:
    """A collective over chunks of `length` elements, `times` in a run, among `ranks`.

    Its `parts` run one after the other, on elements of their own size. A rooted one runs from each rank in turn.
    """

    name: str
    parts: Sequence[CollectivePart]
    ranks: Sequence[int]
    length: int
    times: int
    rooted: bool = False
    overlapped: bool = False
    """Whether it may run on the second channel."""

    def flows(self, config: Config, rank: int) -> Iterator[list[Flow]]:
        """The messages of `rank` in each call, bucket by bucket: those of each part."""
        ranks, widest = len(self.ranks), max(element_bytes for _, element_bytes in self.parts)
        place, roots = self.ranks.index(rank), range(ranks) if self.rooted else (None,)
        for count in bucket_lengths(config, self.length, widest * (1 if self.rooted else ranks)):
            for root in roots:
                yield [flow(collective, ranks, place, count, element_bytes, root)
                       for collective, element_bytes in self.parts]

    def due(self, config: Config, rank: int, hosts: Sequence[int]) -> Count:
        """The traffic of all its calls in the run."""
        def away(to: int) -> bool:
            return bool(hosts) and hosts[self.ranks[to]] != hosts[rank]

        total = Count()
        for parts in self.flows(config, rank):
            total += replace(sum((part.count(away) for part in parts), Count()), calls=1)
        return total.times(self.times)


def bucket_lengths(config: Config, length: int, column_bytes: int) -> list[int]:
    """The lengths of the calls, one a bucket, into which chunks of `length` are cut; an element of all has
    `column_bytes`."""
    most = max(config.parallel.bucket_bytes // column_bytes, 1) if config.parallel.bucket_bytes else max(length, 1)
    whole, rest = divmod(length, most)
    return [most] * whole + [rest] * (rest > 0 or not whole)


def encoded_bytes(wire: Format, length: int) -> int:
    """The bytes of `length` quantised elements: a float32 for each block, and 4 or 8 bits for each element.

    >>> encoded_bytes(Format("int4", block=4), 10)
    17
    """
    bits = 4 if wire.name == "int4" else 8
    return 4 * (-(-length // wire.block) if wire.block else min(length, 1)) + -(-length * bits // 8)


def calls(config: Config, rank: int, updates: int) -> Iterator[DueCall]:
    """The collectives that `rank` must call in a run's steps; `updates` of them were not skipped."""
    stage, steps, mesh, weights, of_matrices = (
        config.stage, config.steps_here, config.placement.of_rank(rank).mesh, config.arithmetic.compute.itemsize,
        config.rule.optimizer.of_matrix)
    trained = [unit for unit in config.model.units if not unit.frozen]
    reductions, passes, addition = steps * config.reductions, steps * config.passes, config.addition
    overlap, prefetch = config.parallel.overlap, config.parallel.prefetch
    rounded, to_all = config.arithmetic, config.sums_everywhere
    codes, wire, sums = rounded.gradients_wire, rounded.weights_wire, rounded.wire.itemsize
    copy, needs_norm = config.placement.of_rank(rank).secondary, config.scaling().needs_norm
    add, gather = addition.collective, addition.all_gather
    parts = [(add, sums)] if add is not None else [
        *[(ring.all_reduce, EXPONENT_BYTES)], *[(ring.reduce_scatter, LIMB_BYTES)] * limbs(rounded.accumulate)]

    def over(units: Iterable[Unit], share: Mesh = mesh) -> list[int]:
        """The lengths of the units' shards."""
        return [shard(unit.count, share) for unit in units]

    for length in over(trained):
        terms = parts if codes is None or add is None else [(add, 1)]
        sent = encoded_bytes(codes, length) if codes else length
        yield DueCall("reduce_scatter", terms, mesh.neighbours, sent, reductions, overlapped=overlap)
        if to_all:
            size = sums if add is not None else rounded.accumulate.itemsize
            yield DueCall("all_gather", [(gather, size)], mesh.neighbours, length, reductions, overlapped=overlap)
    if mesh.replicas > 1 and add is not None:
        for unit in trained:
            for half in (add, ring.all_gather):
                yield DueCall("all_reduce", [(half, sums)], mesh.copies, -(-unit.count // mesh.size), reductions,
                              overlapped=overlap)
    yield from (DueCall("all_gather", [(gather, weights)], mesh.neighbours, length, updates)
                for length in over(trained if of_matrices and stage.shares_updates else []))
    if stage.publishes:
        by_owners = config.parallel.publish == "broadcasts"
        name, publish = ("broadcast", config.addition.broadcast) if by_owners else ("all_gather", gather)
        for length in over(trained):
            yield DueCall(name, [(publish, weights)], mesh.neighbours, length, updates, rooted=by_owners)
    if stage.gathers:
        for length in over(gathered(config)):
            yield DueCall("all_gather", [(gather, 1 if wire else weights)], mesh.neighbours,
                          encoded_bytes(wire, length) if wire else length, passes, overlapped=prefetch)
    if copy is not None:
        for unit, length in zip(config.model.units, over(config.model.units, copy), strict=True):
            yield DueCall("all_gather", [(gather, weights)], copy.neighbours, length,
                          passes * later_uses(config.model, unit), overlapped=prefetch)
    if needs_norm and stage.shares_updates:
        count = mesh.replicas * len(trained)
        yield DueCall("gather_norms", [(ring.all_gather, NORM_BYTES)], mesh.neighbours, count, steps)


def counts_due(config: Config, rank: int, updates: int, hosts: Sequence[int] = ()) -> dict[str, Count]:
    """The traffic of each collective that `rank` calls in a run's steps; `updates` of them were not skipped.

    `hosts` has the number of each rank's host; without it no bytes count as leaving a host.
    """
    counts: dict[str, Count] = {}
    here, directions = config.of_rank(rank), config.directions
    place, data_rank = directions.place(rank), directions.data_rank(rank)
    hosts_here = [hosts[directions.rank(place, neighbour)] for neighbour in range(directions.data)] if hosts else ()
    tape_calls = expected(here, updates).tape_calls
    for call in calls(here, data_rank, updates):
        counts[call.name] = counts.get(call.name, Count()) + call.due(here, data_rank, hosts_here)
    for name, count in (*on_the_tape(here, rank, tape_calls, hosts), *at_cuts(here, rank, hosts)):
        counts[name] = counts.get(name, Count()) + count
    return {name: count for name, count in counts.items() if count.calls}


def on_the_tape(
    config: Config, rank: int, tape_calls: Mapping[TapeCall, int], hosts: Sequence[int]
) -> Iterator[tuple[str, Count]]:
    """The traffic of each call of a collective on the tape, with the collective's name: those of the model's graph."""
    directions, place = config.directions, config.directions.place(rank)
    for call, times in tape_calls.items():
        group, data_rank = directions.group(call.direction, place), directions.data_rank(rank)
        away = [bool(hosts) and hosts[directions.rank(other, data_rank)] != hosts[rank] for other in group]
        yield f"{call.direction}_{call.collective}", tape_flow(call, directions, place).count(
            away.__getitem__).times(times)


def at_cuts(config: Config, rank: int, hosts: Sequence[int]) -> Iterator[tuple[str, Count]]:
    """The traffic at the ends of each chunk of a rank of a pipeline, b s h at each cut: every micro-batch sends on the
    activation and sends back its gradient."""
    directions, times = config.directions, config.steps_here * config.block
    for chunk in config.chunks:
        places, place = directions.group("pipeline", directions.place(rank)), directions.place(rank)
        for cut, ends, by, sent, received in (
            (chunk.given, chunk.first, -1, "send_gradient", "recv_activation"),
            (chunk.output, chunk.last, 1, "send_activation", "recv_gradient"),
        ):
            if not ends:
                other = directions.rank(places[(places.index(place) + by) % len(places)], directions.data_rank(rank))
                away = cut.nbytes if hosts and hosts[other] != hosts[rank] else 0
                yield sent, Count(1, cut.nbytes, 1, 0, away, cut.nbytes).times(times)
                yield received, Count(1, 0, 0, cut.nbytes).times(times)


@lru_cache(maxsize=4096)
def tape_flow(call: TapeCall, directions: Directions, place: int) -> Flow:
    """The messages of the ranks of a place in a call of a collective on the tape, chunk by chunk; a shift is one."""
    places = directions.group(call.direction, place)
    comm = LoneRank(places.index(place), len(places))
    group = GroupOfRanks(call.direction, Observed(comm))
    getattr(group, call.collective)(Extent(call.elements, f"u{call.itemsize}"), *call.args)
    whole, chunk = range(comm.size), -(-call.elements // comm.size)
    lengths = [min(max(call.elements - place * chunk, 0), chunk) for place in whole]
    sent = [whole] * bool(sum(call.args) % comm.size) if call.collective == "shift" else (
        ON_THE_TAPE[call.collective].volume(comm.rank, comm.size, 0))
    messages = Counter(call.itemsize * sum(lengths[chunk] for chunk in message) for message in sent)
    return replace(comm.flow, messages=messages)


def traffic_due(config: Config, rank: int, updates: int, hosts: Sequence[int]) -> Count:
    """The messages that `rank` must send and receive in a run's steps, in all and by collective."""
    formula = counts_due(config, rank, updates, hosts)
    return replace(sum(formula.values(), Count()), by_collective=formula)


def undeclared(config: Config) -> str | None:
    """What some user's collective sends and should not, in words: see `flows.disproved`."""
    called = {(row, len(call.ranks), call.length, itemsize)
              for call in calls(config, 0, 1) for collective, itemsize in call.parts
              if isinstance(row := getattr(collective, "__self__", None), Algorithm) and row.users and call.length}
    return next(filter(None, (disproved(*arguments) for arguments in called)), None)


def gathered(config: Config) -> tuple[Unit, ...]:
    """The units whose weights Stage III gathers in a part, in forward and backward."""
    if config.placement.secondary is not None:
        return tuple(dict.fromkeys(config.model.forward_units))
    if config.parallel.reshard_after_forward:
        return config.model.forward_units + config.model.backward_units
    return tuple(gathered_once(config))


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
    ranks, steps = config.directions.data, config.train.steps
    if ranks == 1 or steps == 0:
        return 0.0
    whole = sum(-(-unit.count // ranks) * ranks for unit in config.model.units) * config.precision.weights.itemsize
    called = ((call, rank) for rank in range(ranks) for call in calls(config, rank, steps))
    sent = sum(call.due(config, rank, ()).sent_bytes for call, rank in called) / ranks / steps
    return sent / (whole * (ranks - 1) / ranks)


def most_messages(config: Config) -> int:
    """The messages in a step that is not skipped, of the rank that sends the most."""
    config = replace(config, resumed=None) if config.resumed else config
    steps, ranks = config.train.steps, config.directions.ranks
    if steps == 0:
        return 0
    counts = (counts_due(config, rank, steps).values() for rank in range(ranks))
    return max(sum(count.messages for count in of_rank) for of_rank in counts) // steps


def message_copies(config: Config) -> int:
    """The most bytes of copies of messages, in a world that keeps them, by length, for reuse.

    A collective ends on a rank only when all others have begun it, and so have received all messages of the previous
    one: at most the messages of two collectives are in flight, and one is arriving. The broadcasts of all buckets from
    each rank count as one. Collectives on the tape have other ranks, so their messages may be in flight as well; of a
    pipeline, those of all micro-batches may be.
    """
    if config.directions.ranks == 1:
        return 0
    most, channels = max(config.placement.mesh.group, config.placement.mesh.replicas) - 1, message_lengths(config)
    for rank in range(config.directions.data):
        for call in calls(config, rank, 1):
            sent = [sum(sum(part.messages.values()) for part in parts) for parts in call.flows(config, rank)]
            most = max(most, sum(sent) if call.rooted else max(sent))
    most += max((sum(sent.messages.values()) for sent in tape_flows(config)), default=0)
    most += 2 * config.block * sum(len(rank_config.chunks) for rank_config in config.of_pipeline)
    return sum(length + length // 4 + 1 for channel in channels for length in channel) * (2 * most + 1)


def message_lengths(config: Config) -> tuple[set[int], set[int]]:
    """The lengths in bytes of all messages of a step: those of the step's own channel, and those of the second channel.

    Exponents, losses and their integers are sent on the step's own channel in every stage.
    """
    own, overlapped = {EXPONENT_BYTES, config.precision.losses.itemsize, LIMB_BYTES}, set[int]()
    for rank in range(config.directions.data):
        for call in calls(config, rank, 1):
            (overlapped if call.overlapped else own).update(
                sent for parts in call.flows(config, rank) for part in parts for sent in part.messages)
    own.update(length for sent in tape_flows(config) for length in sent.messages)
    own.update(chunk.output.nbytes for rank_config in config.of_pipeline for chunk in rank_config.chunks)
    return own, overlapped


def tape_flows(config: Config) -> Iterator[Flow]:
    """The messages of each call of a collective on the tape, on every place."""
    for rank in range(config.directions.ranks):
        place, calls = config.directions.place(rank), expected(config.of_rank(rank)).tape_calls
        yield from (tape_flow(call, config.directions, place) for call in calls)
