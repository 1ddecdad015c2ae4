"""A step on shapes alone: the code of the stages with a memory ledger and a clock, without arrays.

All ranks run at once in the lockstep world, where a rank is a vector and each result holds for all ranks. If ranks do
different things, that world raises `Unlike`, and each rank runs separately in the local world: messages are sent, and
a collective begins when the last rank has reached it. The ranks of a pipeline run side by side in the local world, each
with its data ranks in lockstep. Prices of collectives and operations come from `costs` and `directions`; the memory of
an operation is observed once per shape.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

import numpy as np

from zerosim.collectives.narrow import OnNarrowWires
from zerosim.core.allocation import Allocator, Kind
from zerosim.core.comm import Communicator
from zerosim.core.extents import extent
from zerosim.core.sharding import padded
from zerosim.observe.memory import Ledger
from zerosim.observe.observed import Observed, ObservedAllocator, observed
from zerosim.observe.trace import WAIT, Curve, RankStep
from zerosim.plan.clock import VirtualClock
from zerosim.plan.cluster import Cluster
from zerosim.plan.costs import Costs, of_rank
from zerosim.plan.directions import DirectionCosts, TimedCalls, TimedNeighbours, direction_of
from zerosim.plan.passes import NotedPipeline, like, times_of, together
from zerosim.plan.performers import Performer, kept_by_fused
from zerosim.plan.timed import (
    KeepingOutputs,
    OnTheClock,
    PublishedAhead,
    Timed,
    TimedCopies,
    TimedWire,
    UntilUpdate,
    UpdateRoom,
)
from zerosim.stages.pipeline import Pipeline
from zerosim.stages.replica import Replica
from zerosim.stages.schedules import SCHEDULES, Slot
from zerosim.stages.storage import HostMemory
from zerosim.training.build import gathering, publishing, reduce_scatter, replica, shelf, stepping, storage_of
from zerosim.training.config import Config
from zerosim.verdict.flows import LoneRank
from zerosim.verdict.shapes import NoSums, SilentWire, whole_batch
from zerosim.worlds.local import LocalWorld
from zerosim.worlds.lockstep import LockstepWorld

Uncounted = Callable[[Any, str], bool]
"""`uncounted(shape, owner)` says whether an array has no memory."""

IN_REGISTERS = frozenset({"widened"})
"""Owners of arrays that a device keeps in registers: 32-bit copies of 16-bit numbers."""


@dataclass(frozen=True)
class Rehearsal:
    """The memory, time and traffic of one step on a rank."""

    resting: Counter[Kind]
    peak: Counter[Kind]
    peak_total: int
    clock: VirtualClock
    operations: Counter[str]
    """Floating-point operations of matrix products in forward, backward and recomputation."""
    curve: Curve
    """Live bytes after each change, by the clock, if requested."""
    host_peak: Counter[Kind] = field(default_factory=Counter)
    """The peak of the host's memory."""
    stages: "tuple[Rehearsal, ...]" = ()
    """Each rank of a pipeline; without one, this rank."""

    @property
    def bubble(self) -> float:
        """The share of a step in which the ranks of a pipeline wait for each other's passes, the mean over them."""
        whole = self.clock.now_ns
        idle = sum(stage.clock.idle_ns + whole - stage.clock.now_ns for stage in self.stages)
        return idle / (whole * len(self.stages)) if whole else 0.0

    @property
    def step(self) -> RankStep:
        """All spans and the memory curve, as a traced step of a run."""
        return replace(self.clock.step, memory=self.curve)

    @property
    def sent_by_direction(self) -> dict[str, int]:
        """The most bytes that a rank of the pipeline sends over each direction of the mesh."""
        found = Counter[str]()
        for stage in self.stages:
            mine = Counter[str]()
            for name, count in stage.clock.sent_by.items():
                mine[direction_of(name)] += count
            found |= mine
        return dict(found)

    def sent(self, rank: int) -> dict[str, int]:
        """The bytes and messages that a rank sends."""
        return {what: of_rank(count, rank) for what, count in self.clock.sent_counts.items()}


def rehearse(config: Config, cluster: Cluster, *, curve: bool = False) -> Rehearsal:
    """One step of a row on a cluster; it holds for every rank.

    A `curve` of memory has tens of thousands of points for a model of a hundred blocks.

    Raises `Unlike` if ranks do different things.
    """
    assert config.addition.collective is not None
    if curve:
        return rehearsed_at_once(config, cluster, curve=True)
    return rehearsed_in_short(config, cluster) if config.directions.pipeline == 1 else by_passes(config, cluster)


def rehearsed_at_once(config: Config, cluster: Cluster, *, curve: bool = False) -> Rehearsal:
    """The rehearsal of all ranks as vectors. Raises `Unlike` if ranks do different things."""
    stages, of_stage = config.directions.pipeline, at_each_stage(config, cluster, curve=curve)
    return in_pipeline([of_stage(LoneRank(0, 1))] if stages == 1 else LocalWorld(stages).run(of_stage))


def rehearsed_in_short(config: Config, cluster: Cluster) -> Rehearsal:
    """The rehearsal of a step of many micro-batches by three of fewer: from some number on, each further one adds as
    much time, memory and traffic as the one before. If it does not, the step is rehearsed as it is.
    """
    if config.block > 5 and config.parallel.order != "tree":
        one, two, three = (rehearsed_at_once(with_block(config, few), cluster) for few in (3, 4, 5))
        with suppress(Uneven):
            return in_pipeline([further(one, two, replace(three, stages=()), config.block - 5)])
    return rehearsed_at_once(config, cluster)


def with_block(config: Config, block: int) -> Config:
    """The config with so many micro-batches on a rank."""
    return replace(config, train=replace(config.train, micro_batches=config.ranks * block))


class Uneven(Exception):
    """Figures of three rehearsals are not evenly spaced."""


def further(one: Any, two: Any, three: Any, times: int) -> Any:
    """`three` with its numbers `times` steps further. Raises `Uneven` if the two steps to it are not equal.

    >>> further(Counter(a=3), Counter(a=5), Counter(a=7), times=10)
    Counter({'a': 27})
    """
    if isinstance(three, int | np.ndarray) and not isinstance(three, bool):
        if np.any(three - two != two - one):
            raise Uneven
        return three + times * (three - two)
    if isinstance(three, dict):
        return type(three)({key: further(one.get(key, 0), two.get(key, 0), each, times) for key, each in three.items()})
    if isinstance(three, Rehearsal | VirtualClock):
        return replace(three, **{
            each.name: further(getattr(one, each.name), getattr(two, each.name), getattr(three, each.name), times)
            for each in fields(three)})
    return three


def by_passes(config: Config, cluster: Cluster) -> Rehearsal:
    """The rehearsal of a pipeline, see `passes`. Ranks with equal units share the rehearsal of one by itself."""
    ranks, block, around = config.directions.pipeline, config.block, priced(config, cluster)[1]
    at_once = ranks if config.parallel.model_chunks > 1 else 1
    few = min(block, at_once * -(-3 // at_once))
    noted = list[NotedPipeline]()
    of_rank = at_each_stage(with_block(config, few), cluster, noted=noted)
    alone, alike = list[tuple[Rehearsal, NotedPipeline]](), dict[Any, tuple[Rehearsal, NotedPipeline]]()
    for rank, here in enumerate(config.of_pipeline):
        key = tuple((chunk.first, chunk.last, unit.count, unit.frozen, *(each.computation for each in unit.segments))
                    for chunk in here.chunks for unit in chunk.units)
        alike[key] = alike.get(key) or (of_rank(LoneRank(rank, ranks)), noted[-1])
        alone.append(alike[key])
    schedule, seen = SCHEDULES[config.parallel.schedule], around.seen("pipeline")
    orders = [schedule(rank, ranks, block, len(here.chunks)) for rank, here in enumerate(config.of_pipeline)]

    def travels(rank: int, slot: Slot) -> int:
        to, chunk = (rank + (1 if slot.what == "F" else -1)) % ranks, config.of_pipeline[rank].chunks[slot.chunk]
        link = seen.inside if seen.host(rank) == seen.host(to) else seen.between
        return link.message_ns((chunk.output if slot.what == "F" else chunk.given).nbytes)

    times = times_of(orders, lambda rank, slot: alone[rank][1].noted[like(slot, block, few)][:2], travels)
    began = [each.ended_ns for each in times]
    for what, some in (("pipeline_all_reduce", range(ranks)), ("ends_all_reduce", (0, ranks - 1))):
        if what in alone[0][0].clock.communicating_ns:
            last = max(began[rank] for rank in some)
            began = [max(each, last) if rank in some else each for rank, each in enumerate(began)]
    return in_pipeline([together(*alone[rank], orders[rank], times[rank], began[rank], few, block)
                        for rank in range(ranks)])


def at_each_stage(
    config: Config, cluster: Cluster, *, curve: bool = False, noted: list[NotedPipeline] | None = None,
) -> Callable[[Communicator], Rehearsal]:
    """A function that rehearses all data ranks of one rank of a pipeline."""
    asked, around = priced(config, cluster)

    def of_stage(pipeline: Communicator) -> Rehearsal:
        here = config.of_pipeline[pipeline.rank]
        (found,) = LockstepWorld(config.ranks).run(
            lambda comm: rehearsed(here, Clocked(comm, asked), around, pipeline, curve=curve, noted=noted))
        return found

    return of_stage


def priced(config: Config, cluster: Cluster) -> tuple[Costs, DirectionCosts]:
    """The prices of operations and of their collectives, and those of other directions.
    """
    seen = cluster.seen_by(config.directions.side_by_side)
    costs = Costs(seen, config.ranks, config.computing.weights.itemsize, all_reduces=not config.stage.sharded)
    return costs, DirectionCosts(config.directions, cluster)


def in_pipeline(stages: Sequence[Rehearsal]) -> Rehearsal:
    """The slowest rank of a pipeline, with the memory of the fullest, and all of them in `stages`."""
    slowest = max(stages, key=lambda stage: stage.clock.now_ns)
    fullest = max(stages, key=lambda stage: stage.peak_total)
    return replace(slowest, resting=fullest.resting, peak=fullest.peak, peak_total=fullest.peak_total,
                   host_peak=fullest.host_peak, stages=tuple(stages))


def rehearsed(
    config: Config, comm: "Clocked", around: DirectionCosts, pipeline: Communicator, *, curve: bool,
    noted: list[NotedPipeline] | None = None,
) -> Rehearsal:
    """A step of the data ranks, all at once, of one rank of a pipeline, which is added to `noted` with its passes."""
    ledger, far = Ledger(clock=lambda: comm.clock.now_ns), Ledger()
    neighbours = TimedNeighbours(pipeline, comm.clock, around)
    mine, room = on_shapes(config, comm, around, neighbours, ledger, far)
    mine.begin(lambda unit: extent(padded(unit.count, comm.size), np.float32, kind="parameters", owner=unit.name))
    mine.state.updates = 1
    comm.begun = True
    ledger.begin_peak()
    if curve:
        ledger.begin_curve()
    keeps = around.cluster.software.keeps_outputs

    def pipeline_of(*given: Any) -> Pipeline:
        if noted is None:
            return KeepingOutputs(*given, keeps=keeps)
        noted.append(NotedPipeline(*given, ledger=ledger, clock=comm.clock, keeps=keeps))
        return noted[-1]

    stepping(config, config.stage, comm, mine, neighbours, [], pipeline_of)(whole_batch(config))
    room.release()
    if around.cluster.software.ahead:
        comm.clock.wait(comm.clock.stream_ns - one_forward_ns(comm.clock, config.passes))
    return Rehearsal(
        resting=Counter(ledger.now), peak=Counter(ledger.peak), peak_total=ledger.peak_total, clock=comm.clock,
        operations=Counter(mine.tape.operations), curve=ledger.curve_so_far(),
        host_peak=Counter(far.peak),
    )


def one_forward_ns(clock: VirtualClock, passes: int) -> int:
    """The time of one of `passes` forward passes, beside which the weights of the step before are gathered."""
    return clock.computing_ns["forward"] // passes


def on_shapes(
    config: Config, comm: "Clocked", around: DirectionCosts, neighbours: TimedNeighbours, ledger: Ledger,
    far: Ledger,
) -> tuple[Replica, UpdateRoom]:
    """A replica of a row on shapes, with the buffers of its updates."""
    cluster = comm.costs.cluster
    uncounted = uncounted_on(config, cluster)
    allocate = counted_but(uncounted, ObservedAllocator(extent, ledger))
    calls = TimedCalls(around, neighbours, comm.clock, partial(kept_by_fused, cluster) if cluster.fused else None)
    performer = Performer(comm.clock, comm.costs, allocate, calls)
    copies = TimedCopies(comm.clock, cluster.host_memory, lambda: comm.begun)
    host = HostMemory(ObservedAllocator(extent, far), copies)
    built = replica(config, comm, allocate, perform=performer.perform, host=host)
    built.tape.shelf = shelf(config, allocate, host, {"tensor": calls.beside("tensor", config.directions.tensor)})
    beside, reducing = (observed(found(comm, comm.clock), comm.instruments, wait=WAIT)
                        for found in (OnTheClock, UntilUpdate if cluster.software.ahead else OnTheClock))
    room = UpdateRoom(built, allocate, cluster.software)
    timed = Timed(config.rule, comm.clock, comm.costs, room, on_host="optimizer" in config.on_host)
    storage, rule = storage_of(config, allocate, host, timed, comm.instruments)
    wire = config.weights_wire and TimedWire(config.weights_wire, comm.clock, comm.costs)
    silent_wire = config.gradients_wire and SilentWire(config.gradients_wire)
    return replace(
        built,
        norms=NoSums(calls=calls, whole=config.whole),
        publishing=PublishedAhead(publishing(config, timed), comm.clock) if cluster.software.ahead else
        publishing(config, timed),
        collectives=replace(built.collectives, reduce_scatter=reduce_scatter(
            config, comm, allocate, silent_wire)),
        gathering=gathering(config, beside, wire),
        overlap=reducing if config.parallel.overlap else None,
        storage=storage,
        rule=rule,
    ), room


def uncounted_on(config: Config, cluster: Cluster) -> Uncounted:
    """A test for arrays without memory: registers of fused kernels, and the scores of a chunked loss."""
    registers = IN_REGISTERS if cluster.fused else frozenset[str]()
    scores = config.model.task.outputs if cluster.software.loss == "chunked" and config.model.task.tokens else 0

    def uncounted(shape: Any, owner: str) -> bool:
        return owner in registers or (isinstance(shape, tuple) and len(shape) > 1 and shape[-1] == scores)

    return uncounted


def counted_but(uncounted: Uncounted, counted: Allocator) -> Allocator:
    """The allocator `counted`, which does not count arrays without memory."""

    def allocate(shape: Any, dtype: Any, *, kind: Kind, owner: str) -> Any:
        return (extent if uncounted(shape, owner) else counted)(shape, dtype, kind=kind, owner=owner)

    return allocate


class Clocked(Observed):
    """A communicator whose collectives take time and send no messages."""

    def __init__(self, comm: Communicator, costs: Costs) -> None:
        self.clock = VirtualClock(costs.cluster.device.taken_by_collectives)
        self.costs = costs
        self.begun = False
        """Whether the step has begun; earlier copies take no time of it."""
        super().__init__(comm, self.clock)

    def named(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function` as a timed collective."""

        def call(owner: str, comm: Communicator, *arguments: Any) -> None:
            price = self.costs.of(comm).price(function, *arguments)
            if isinstance(function, OnNarrowWires) and comm.size > 1:
                function.take_room(arguments[0][0])
            self.clock.communicate(name, price.ns, owner, of_rank(price.sent_bytes, 0))
            self.clock.send(price.sent_bytes, price.messages)
            if copied_ns := self.costs.copied_ns(price.sent_bytes):
                self.clock.compute("copies", copied_ns)

        return call
