"""A step on shapes alone: the code of the stages with a memory ledger and a clock, without arrays.

All data ranks run at once in the lockstep world, where a rank is a vector and each result holds for all ranks; ranks
that do different things are refused (`Unlike`). The ranks of a pipeline are rehearsed one by one and put together by
their passes, see `timed`. Prices of collectives and operations come from `costs` and `directions`.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np

from zerosim.collectives.narrow import OnNarrowWires
from zerosim.core.allocation import Allocator, Kind
from zerosim.core.comm import Communicator
from zerosim.core.extents import extent
from zerosim.core.sharding import padded
from zerosim.observe.ledger import Curve, Ledger
from zerosim.observe.observed import Observed, ObservedAllocator, ObservedObject, observed
from zerosim.observe.trace import WAIT
from zerosim.plan.clock import VirtualClock
from zerosim.plan.cluster import Cluster
from zerosim.plan.costs import Costs
from zerosim.plan.directions import DirectionCosts, TimedCalls, direction_of
from zerosim.plan.performers import FusedKernels, Performer
from zerosim.plan.sharing import Sharing
from zerosim.plan.timed import (
    ALL,
    Pass,
    PassRecorder,
    RecordedPipeline,
    RepeatingReplica,
    TimedChannel,
    TimedUpdates,
    copied,
    in_all,
    timed_wire,
)
from zerosim.stages.replica import Publishing
from zerosim.stages.schedules import SCHEDULES, Slot
from zerosim.stages.storage import HostMemory
from zerosim.training.build import Parts, replica, stepping
from zerosim.training.config import Config
from zerosim.verdict.pipelines import RankTimes, times_of
from zerosim.verdict.shapes import NoSums, SilentWire, Unconnected, whole_batch
from zerosim.worlds.lockstep import LockstepCommunicator

REHEARSED = 3
"""The micro-batches of a pipeline that are rehearsed: the first, the last, and one that stands for all others."""

IN_REGISTERS = frozenset({"widened"})
"""Owners of arrays that a device keeps in registers: 32-bit copies of 16-bit numbers."""


@dataclass(frozen=True)
class Rehearsal:
    """The memory, time and traffic of one step on a rank."""

    resting: Counter[Kind]
    peak: Counter[Kind]
    peak_total: int
    clock: VirtualClock
    curve: Curve
    """Live bytes after each change, by the clock, if requested."""
    host_peak: Counter[Kind]
    """The peak of the host's memory."""
    recorded: PassRecorder
    """The passes of this rank by itself, if it is one of a pipeline."""
    stages: "tuple[Rehearsal, ...]" = ()
    """Each rank of a pipeline; without one, this rank."""

    @property
    def operations(self) -> Counter[str]:
        """Floating-point operations of matrix products in forward, backward and recomputation."""
        return self.clock.counts["operations"]

    @property
    def bubble(self) -> float:
        """The share of a step in which the ranks of a pipeline wait for each other's passes, the mean over them."""
        whole = self.clock.now_ns
        idle = sum(stage.clock.idle_ns + whole - stage.clock.now_ns for stage in self.stages)
        return idle / (whole * len(self.stages)) if whole else 0.0

    @property
    def sent_by_direction(self) -> dict[str, int]:
        """The bytes that a rank sends over each direction of the mesh, the most of the ranks of a pipeline."""
        most = Counter[str]()
        for stage in self.stages:
            sent = Counter[str]()
            for name, count in stage.clock.counts["bytes"].items():
                sent[direction_of(name)] += count
            most |= sent
        return dict(most)

    @property
    def sent_bytes(self) -> int:
        """The most bytes that a rank sends."""
        return max(stage.clock.counts["bytes"].total() for stage in self.stages)


def rehearse(config: Config, cluster: Cluster, *, traced: bool = False) -> Rehearsal:
    """One step of a row on a cluster; it holds for every data rank.

    If `traced`, it has the spans of every micro-batch and a curve of memory, with tens of thousands of points for a
    model of a hundred blocks. Raises `Unlike` if ranks do different things.
    """
    assert config.addition.collective is not None
    around = DirectionCosts(
        config.directions, cluster, config.keys.experts_per_token if cluster.software.once_a_host else 1)
    if config.directions.pipeline == 1:
        return in_pipeline([by_itself(config, cluster, around, traced=traced)])
    return by_slots(config, cluster, around, traced=traced)


def by_slots(config: Config, cluster: Cluster, around: DirectionCosts, *, traced: bool) -> Rehearsal:
    """The rehearsal of a pipeline by its passes; ranks with equal units share the rehearsal of one by itself."""
    ranks, block, here, turn = config.directions.pipeline, config.passes, config.of_pipeline, turn_of(config)
    few = min(block, turn * -(-REHEARSED // turn))
    short, seen = with_passes(config, few).of_pipeline, around.seen("pipeline")
    alike, alone, passes = dict[Any, Rehearsal](), list[Rehearsal](), list[dict[Slot, Pass]]()
    for rank, piece in enumerate(here):
        key = tuple((chunk.first, chunk.last, unit.count, unit.frozen, *(of.computation for of in unit.segments))
                    for chunk in piece.chunks for unit in chunk.units)
        if key not in alike:
            alike[key] = by_itself(short[rank], cluster, around, traced=traced)
        alone.append(alike[key])
        slots = SCHEDULES[config.parallel.schedule](rank, ranks, block, len(piece.chunks))
        passes.append({slot: alike[key].recorded.values[like(slot, block, few)] for slot in slots})

    def travels(rank: int, slot: Slot) -> tuple[int, int]:
        to, chunk = (rank + (1 if slot.what == "F" else -1)) % ranks, here[rank].chunks[slot.chunk]
        count = (chunk.output if slot.what == "F" else chunk.given).nbytes
        return (seen.inside if seen.host(rank) == seen.host(to) else seen.between).message_ns(count), count

    times = times_of([[*of_rank] for of_rank in passes], lambda rank, slot: passes[rank][slot][:2], travels)
    began = [rank_times.ended for rank_times in times]
    for what, some in (("pipeline_all_reduce", range(ranks)), ("ends_all_reduce", (0, ranks - 1))):
        if what in alone[0].clock.counts["communicating"]:
            last = max(began[rank] for rank in some)
            began = [max(began_ns, last) if rank in some else began_ns for rank, began_ns in enumerate(began)]
    return in_pipeline([*map(together, alone, passes, times, began)])


def like(slot: Slot, block: int, few: int) -> Slot:
    """The pass of a step of `few` micro-batches that is like a pass of a step of `block`."""
    number = few - 1 if slot.micro_batch == block - 1 else min(slot.micro_batch, 1)
    return slot if block == few else slot._replace(micro_batch=number)


SENT = {"F": "send_activation", "B": "send_gradient"}
"""The messages of passes that send their result."""


def together(rehearsal: Rehearsal, passes: Mapping[Slot, Pass], times: RankTimes, began_ns: int) -> Rehearsal:
    """The rehearsal of a rank that runs these passes, from that of few micro-batches by itself; with all spans and a
    curve of memory, if that has them. What follows the passes begins at `began_ns`.
    """
    recorded, clock = rehearsal.recorded, replace(rehearsal.clock, spans=[], counts=copied(rehearsal.clock.counts))
    counts, now, curve = clock.counts, Counter(recorded.base), rehearsal.curve[:1]
    peak, later_ns = in_all(rehearsal.peak, rehearsal.peak_total), began_ns - recorded.ended_ns
    for value in recorded.values.values():
        value.add_to(counts, -1)
    for at, value in zip(times.began, passes.values(), strict=True):
        value.add_to(counts, 1)
        peak |= Counter({kind: now[kind] + more for kind, more in value.peak.items()})
        clock.spans += [span.later(at) for span in value.spans]
        curve += [(at + after, {str(kind): now[kind] + more for kind, more in held.items()})
                  for after, held in value.curve]
        now.update(value.left)
    for slot, begins, ends, count in times.messages:
        clock.travel(SENT[slot.what], "pipeline", begins, ends, count, 1)
    clock.spans += [span.later(later_ns) for span in rehearsal.clock.spans if span.begin_ns >= recorded.ended_ns]
    curve += [(at + later_ns, held) for at, held in rehearsal.curve if at >= recorded.ended_ns]
    clock.now_ns += later_ns
    clock.idle_ns = times.idle + began_ns - times.ended
    counts["waiting"]["exposed"] += times.exposed
    return replace(rehearsal, clock=clock, peak_total=peak.pop(ALL), peak=peak, curve=curve)


def turn_of(config: Config) -> int:
    """The passes of which a step has a multiple: several model chunks take as many turns as the pipeline has ranks."""
    return config.directions.pipeline if config.parallel.model_chunks > 1 else 1


def with_passes(config: Config, passes: int) -> Config:
    """The row with so many passes of a rank in a step."""
    return replace(config, train=replace(config.train, micro_batches=config.directions.data * passes * config.at_once))


def in_pipeline(stages: Sequence[Rehearsal]) -> Rehearsal:
    """The slowest rank of a pipeline, with the memory of the fullest, and all of them in `stages`."""
    slowest = max(stages, key=lambda stage: stage.clock.now_ns)
    fullest = max(stages, key=lambda stage: stage.peak_total)
    return replace(slowest, resting=fullest.resting, peak=fullest.peak, peak_total=fullest.peak_total,
                   host_peak=fullest.host_peak, stages=tuple(stages))


def by_itself(config: Config, cluster: Cluster, around: DirectionCosts, *, traced: bool) -> Rehearsal:
    """A step of all data ranks of one rank of a pipeline, by itself; with the recorded passes if there is one."""
    directions, software = config.directions, cluster.software
    costs = Costs(cluster, directions.data, config.arithmetic.compute.itemsize, directions.side_by_side)
    comm = Clocked(LockstepCommunicator(directions.data), costs, Sharing.of(config, cluster))
    clock, shared = comm.clock, comm.sharing.allocator(extent)
    clock.traced = traced
    ledger, far = Ledger(clock=lambda: clock.now_ns), Ledger()
    allocate = counted_on(config, cluster, ObservedAllocator(comm.sharing.allocator(extent, gathered=True), ledger))
    kernels = FusedKernels(software, config.arithmetic.compute) if cluster.fused else None
    calls = TimedCalls(around, clock, kernels)

    def carry(what: str, owner: str, into: Any, source: Any) -> None:
        if comm.begun:
            clock.carry(what, owner, cluster.host_memory.message_ns(source.nbytes), source.nbytes)

    gathers, reducing = (observed(TimedChannel(comm, clock, until_update=until_update), comm.instruments, wait=WAIT)
                         for until_update in (False, software.ahead))
    updates = TimedUpdates(config, clock, costs, comm.sharing, allocate)
    arithmetic, group = config.arithmetic, calls.group("tensor", directions.tensor)
    wire = arithmetic.weights_wire and timed_wire(arithmetic.weights_wire, clock, costs)
    rehearsed = replica(
        config, comm, allocate, perform=Performer(clock, costs, allocate, calls).perform,
        host=HostMemory(ObservedAllocator(shared, far), carry),
        policy=None if kernels is None else partial(kernels.plan_of, arithmetic.policy), parts=Parts(
            updates, NoSums(0.0, calls, config.whole), gathers, reducing, ObservedAllocator(shared, ledger),
            group, wire, SilentWire.of(arithmetic.gradients_wire)))
    if software.ahead:
        publish = clock.overlapped()(rehearsed.publishing.publish)
        rehearsed.publishing = cast("Publishing", ObservedObject(rehearsed.publishing, {"publish": publish}))
    recorder, clock.counts["operations"] = PassRecorder(clock, ledger), rehearsed.tape.operations
    if not (config.chunks or traced or config.parallel.order == "tree"):    # whose sums grow from pass to pass
        rehearsed = RepeatingReplica(**vars(rehearsed), recorder=recorder)
    neighbours = Unconnected(config, calls.group("ends", 2))
    step = stepping(config, config.stage, comm, rehearsed, neighbours, [], partial(
        RecordedPipeline, recorder=recorder, keeps_outputs=software.keeps_outputs))
    rehearsed.begin(lambda unit: extent(padded(unit.count, comm.size), np.float32, kind="parameters", owner=unit.name))
    rehearsed.state.updates = 1      # not the first step
    comm.begun = True
    held = [*buffers_of(config, cluster, ObservedAllocator(extent, ledger))]
    ledger.begin_peak()
    if traced:
        ledger.begin_curve()
    step(whole_batch(config))
    updates.buffers = None
    held.clear()
    if software.ahead:      # weights of the step before are gathered beside one forward
        clock.wait(clock.stream_ns - clock.counts["computing"]["forward"] // config.passes)
    return Rehearsal(
        resting=Counter(ledger.now), peak=Counter(ledger.peak), peak_total=ledger.peak_total, clock=clock,
        curve=list(ledger.curve), host_peak=Counter(far.peak), recorded=recorder)


def buffers_of(config: Config, cluster: Cluster, allocate: Allocator) -> Iterator[Any]:
    """The buffers of DeepSpeed during a step: gathered weights beyond two units, and buckets of gradients."""
    largest = sorted(unit.count for unit in config.model.units)[-2:]
    live = min(cluster.live_parameters, config.model.count) - sum(largest)
    if live > 0 and config.stage.gathers:
        yield allocate(live, config.arithmetic.compute, kind="buffers", owner="live parameters")
    bucket = min(cluster.bucket_elements, config.model.count) * (1 + config.parallel.overlap)
    if bucket and config.stage.sharded:
        yield allocate(bucket, config.arithmetic.wire, kind="buffers", owner="buckets")


def counted_on(config: Config, cluster: Cluster, counted: Allocator) -> Allocator:
    """The allocator `counted`, which does not count arrays without memory: registers of fused kernels, and the scores
    of a chunked loss."""
    registers = IN_REGISTERS if cluster.fused else frozenset[str]()
    scores = config.model.task.outputs if cluster.software.loss == "chunked" and config.model.task.tokens else 0

    def allocate(shape: Any, dtype: Any, *, kind: Kind, owner: str) -> Any:
        uncounted = owner in registers or (isinstance(shape, tuple) and len(shape) > 1 and shape[-1] == scores)
        return (extent if uncounted else counted)(shape, dtype, kind=kind, owner=owner)

    return allocate


class Clocked(Observed):
    """A communicator whose collectives take time and send no messages."""

    def __init__(self, comm: Communicator, costs: Costs, sharing: Sharing) -> None:
        self.clock = VirtualClock(costs.cluster.device.channels / costs.cluster.device.multiprocessors)
        self.costs, self.sharing = costs, sharing
        self.begun = False
        """Whether the step has begun; earlier copies take no time of it."""
        super().__init__(comm, self.clock)

    def named(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function` as a timed collective."""

        def call(owner: str, comm: Communicator, *arguments: Any) -> None:
            price = self.sharing.price(self.costs, function, owner, comm, arguments)
            if isinstance(function, OnNarrowWires) and comm.size > 1:
                function.take_buffers(arguments[0][0])
            self.clock.communicate(name, price.ns, owner, price.sent_bytes, price.messages)
            if copied_ns := self.costs.copied_ns(price.sent_bytes):
                self.clock.compute("copies", copied_ns)

        return call
