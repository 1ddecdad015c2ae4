"""A step on shapes alone: the code of the stages with a memory ledger and a clock, without arrays.

All ranks run at once in the lockstep world, where a rank is a vector and each result holds for all ranks. If ranks do
different things, that world raises `Unlike`, and each rank runs separately in the local world: messages are sent, and
a collective begins when the last rank has reached it. The ranks of a pipeline run side by side in the local world, each
with its data ranks in lockstep. Prices of collectives and operations come from `costs` and `directions`; the memory of
an operation is observed once per shape.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from zerosim.autograd.player import FLOAT_BYTES, Player
from zerosim.collectives import dissemination
from zerosim.collectives.narrow import OnNarrowWires
from zerosim.core.allocation import Allocator, Kind
from zerosim.core.comm import Communicator
from zerosim.core.errors import Unlike, ZerosimError
from zerosim.core.extents import extent
from zerosim.core.sharding import Directions, padded
from zerosim.observe.memory import Ledger
from zerosim.observe.observed import Observed, ObservedAllocator, observed
from zerosim.observe.trace import WAIT, Curve, RankStep
from zerosim.plan.calls import NotedExtent, NumpyCall, silent
from zerosim.plan.clock import VirtualClock
from zerosim.plan.cluster import Cluster
from zerosim.plan.costs import Costs, of_rank
from zerosim.plan.directions import DirectionCosts, TimedCalls, TimedNeighbours, direction_of
from zerosim.plan.dispatch import dispatch_of
from zerosim.plan.fusion import Fused
from zerosim.plan.imbalance import on_the_busiest
from zerosim.plan.joined import full_buffers, groups_of_unit, one_by_one, with_sharers
from zerosim.plan.performers import CallByCall, Performer, kept_by_fused
from zerosim.plan.repeated import Repeating
from zerosim.plan.timed import (
    OnTheClock,
    PublishedAhead,
    Skipping,
    Timed,
    TimedCopies,
    TimedWire,
    UntilUpdate,
    UpdateRoom,
)
from zerosim.stages.replica import Replica
from zerosim.stages.schedules import Slot
from zerosim.stages.storage import HostMemory
from zerosim.training.build import gathering, publishing, reduce_scatter, replica, shelf, stepping, storage_of
from zerosim.training.config import Config
from zerosim.verdict.flows import LoneRank
from zerosim.verdict.segments import SeenSegments, Uncounted
from zerosim.verdict.shapes import NoSums, SilentWire, whole_batch
from zerosim.worlds.local import LocalWorld
from zerosim.worlds.lockstep import LockstepWorld

MOST_APART = 64
"""The most ranks that are rehearsed one by one."""

CUT = frozenset({"reduce_scatter", "all_gather"})
"""The collectives over the ranks over which a unit is cut; others are over those with copies of a chunk."""

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
    passes: tuple[Slot, ...] = ()
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
    """One step of a row on a cluster; it holds for every rank or, if ranks differ, for the slowest.

    A `curve` of memory has tens of thousands of points for a model of a hundred blocks.

    Raises `ZerosimError` if ranks differ and are too many to rehearse one by one.
    """
    assert config.addition.collective is not None
    config = on_the_busiest(config, cluster.experts)
    try:
        return rehearsed_at_once(config, cluster, curve=curve)
    except Unlike as unlike:
        if config.ranks * config.directions.pipeline > MOST_APART:
            raise ZerosimError(
                f"{config.name}: {unlike}, and at most {MOST_APART} ranks are planned one by one; set world.ranks to "
                f"at most that"
            ) from unlike
        return worst(rehearsed_apart(config, cluster, curve=curve))


def rehearsed_at_once(config: Config, cluster: Cluster, *, curve: bool = False) -> Rehearsal:
    """The rehearsal of all ranks as vectors. Raises `Unlike` if ranks do different things."""
    stages, of_stage = config.directions.pipeline, at_each_stage(config, cluster, curve=curve)
    return in_pipeline([of_stage(LoneRank(0, 1))] if stages == 1 else LocalWorld(stages).run(of_stage))


def rehearsed_without_others(config: Config, cluster: Cluster) -> list[Rehearsal]:
    """Each rank of a pipeline by itself: nothing arrives, and it waits for no rank. Equal ranks share a rehearsal."""
    config = on_the_busiest(config, cluster.experts)
    of_stage, found, alike = at_each_stage(config, cluster), list[Rehearsal](), dict[Any, Rehearsal]()
    for rank, here in enumerate(config.of_pipeline):
        key = tuple((chunk.first, chunk.last, unit.count, unit.frozen, *(each.computation for each in unit.segments))
                    for chunk in here.chunks for unit in chunk.units)
        alike[key] = alike.get(key) or of_stage(LoneRank(rank, config.directions.pipeline))
        found.append(alike[key])
    return found


def at_each_stage(config: Config, cluster: Cluster, *, curve: bool = False) -> Callable[[Communicator], Rehearsal]:
    """A function that rehearses all data ranks of one rank of a pipeline."""
    config, asked, around = priced(config, cluster)

    def of_stage(pipeline: Communicator) -> Rehearsal:
        here = config.of_pipeline[pipeline.rank]
        (found,) = LockstepWorld(config.ranks).run(
            lambda comm: rehearsed(here, Clocked(comm, here, asked), around, pipeline, curve=curve))
        return found

    return of_stage


def rehearsed_apart(config: Config, cluster: Cluster, *, curve: bool = False) -> list[Rehearsal]:
    """The rehearsal of each data rank separately; messages are sent and counted one by one."""
    config, asked, around = priced(config, cluster)
    grid = Directions(pipeline=config.directions.pipeline, data=config.ranks)
    meetings = [Meetings() for _ in config.of_pipeline]

    def of_rank(comm: Communicator) -> Rehearsal:
        pipeline = grid.along(comm, "pipeline")
        here = config.of_pipeline[pipeline.rank]
        mine = Meeting(grid.data_ranks(comm), here, asked, meetings[pipeline.rank])
        return rehearsed(here, mine, around, pipeline, curve=curve)

    found = LocalWorld(config.ranks * grid.pipeline).run(of_rank)
    return [in_pipeline(found[rank :: config.ranks]) for rank in range(config.ranks)]


def priced(config: Config, cluster: Cluster) -> tuple[Config, Costs, DirectionCosts]:
    """The config of all data ranks, the prices of operations and of their collectives, and those of other directions.
    """
    whole = with_sharers(config, cluster)
    seen = cluster.seen_by(config.directions.side_by_side * config.ranks // whole.ranks, whole.ranks)
    narrow = config.computing.weights.itemsize
    summed = (FLOAT_BYTES if config.accumulates_in_float32 else narrow) if cluster.software.fuses_sums else 0
    costs = Costs(seen, whole.ranks, narrow, all_reduces=not config.stage.sharded, sum_itemsize=summed)
    return whole, costs, DirectionCosts(config.directions, cluster, dispatch_of(config, cluster))


def worst(ranks: Sequence[Rehearsal]) -> Rehearsal:
    """The slowest rank, with the greatest memory of any rank, and what each rank sends, as if all ran at once."""
    slowest = max(ranks, key=lambda rank: rank.clock.now_ns)
    for stage, alike in zip(slowest.stages, zip(*(rank.stages for rank in ranks), strict=True), strict=True):
        stage.clock.sent_by = alike[0].clock.sent_by
        stage.clock.sent_counts = Counter({
            what: np.array([each.clock.sent_counts[what] for each in alike]) for what in stage.clock.sent_counts})
    resting, peak = Counter[Kind](), Counter[Kind]()
    for rank in ranks:
        resting |= rank.resting
        peak |= rank.peak
    return replace(slowest, resting=resting, peak=peak, peak_total=max(rank.peak_total for rank in ranks))


def in_pipeline(stages: Sequence[Rehearsal]) -> Rehearsal:
    """The slowest rank of a pipeline, with the memory of the fullest, and all of them in `stages`."""
    slowest = max(stages, key=lambda stage: stage.clock.now_ns)
    fullest = max(stages, key=lambda stage: stage.peak_total)
    return replace(slowest, resting=fullest.resting, peak=fullest.peak, peak_total=fullest.peak_total,
                   host_peak=fullest.host_peak, stages=tuple(stages))


def rehearsed(
    config: Config, comm: "Clocked", around: DirectionCosts, pipeline: Communicator, *, curve: bool
) -> Rehearsal:
    """A step of the ranks that `comm` represents: one data rank, or all at once, of one rank of a pipeline."""
    ledger, far = Ledger(clock=lambda: comm.clock.now_ns), Ledger()
    neighbours = TimedNeighbours(pipeline, comm.clock, around)
    mine, skipping, room = on_shapes(config, comm, around, neighbours, ledger, far, each_segment=curve)
    mine.begin(lambda unit: extent(padded(unit.count, comm.size), np.float32, kind="parameters", owner=unit.name))
    mine.state.updates = 1
    comm.begun = True
    ledger.begin_peak()
    if curve:
        ledger.begin_curve()
    passes = list[Slot]()
    repeating = partial(Repeating, ledger=ledger, clock=comm.clock, runs_all=not skipping.repeats,
                        keeps_outputs=around.cluster.software.keeps_outputs)
    stepping(config, config.stage, comm, mine, neighbours, passes, repeating)(whole_batch(config))
    room.release()
    if around.cluster.software.ahead:
        comm.clock.wait(comm.clock.stream_ns - one_forward_ns(comm.clock, config.passes - skipping.skipped))
    skipping.repeat_skipped(mine.tape.operations)
    return Rehearsal(
        resting=Counter(ledger.now), peak=Counter(ledger.peak), peak_total=ledger.peak_total, clock=comm.clock,
        operations=Counter(mine.tape.operations), curve=ledger.curve_so_far(),
        host_peak=Counter(far.peak), passes=tuple(passes),
    )


def one_forward_ns(clock: VirtualClock, passes: int) -> int:
    """The time of one of `passes` forward passes, beside which the weights of the step before are gathered."""
    return clock.computing_ns["forward"] // passes


def on_shapes(
    config: Config, comm: "Clocked", around: DirectionCosts, neighbours: TimedNeighbours, ledger: Ledger,
    far: Ledger, *, each_segment: bool,
) -> tuple[Replica, Skipping, UpdateRoom]:
    """A replica of a row on shapes, with the micro-batches that it skips and the buffers of its updates.

    `each_segment` follows memory within each segment of a unit.
    """
    cluster = comm.costs.cluster
    called = cluster.device.calls is not None
    uncounted, taken = uncounted_on(config, cluster), full_buffers(config.model.units, config.ranks)
    allocate = counted_but(uncounted, ObservedAllocator(charged(taken, comm) if called else taken, ledger),
                           fuses_sums=cluster.software.fuses_sums and config.accumulates_in_float32)
    calls = TimedCalls(around, neighbours, comm.clock, partial(kept_by_fused, cluster) if cluster.fused else None)
    performer = (CallByCall if called else Performer)(comm.clock, comm.costs, allocate, calls)
    segments = SeenSegments(ledger.pass_by, uncounted, performer.carry_out, performer.charge)
    players = Player if called or each_segment else segments.player
    host = HostMemory(ObservedAllocator(taken, far), TimedCopies(comm.clock, cluster.host_memory, lambda: comm.begun))
    policy = Fused(config.policy, cluster.software)
    built = replica(
        config, comm, allocate, perform=performer.perform, players=players, host=host, policy=policy)
    built.tape.shelf = shelf(config, allocate, host, {"tensor": calls.beside("tensor", config.directions.tensor)})
    beside, reducing = (observed(found(comm, comm.clock), comm.instruments, wait=WAIT)
                        for found in (OnTheClock, UntilUpdate if cluster.software.ahead else OnTheClock))
    room = UpdateRoom(built, allocate, cluster.software)
    timed = Timed(config.rule, comm.clock, comm.costs, room, on_host="optimizer" in config.on_host)
    storage, rule = storage_of(config, allocate, host, timed, comm.instruments)
    repeats = config.parallel.order != "tree" and "parameters" not in config.on_host
    alike = comm.alike and not each_segment and repeats
    wire = config.weights_wire and TimedWire(config.weights_wire, comm.clock, comm.costs)
    silent_wire = config.gradients_wire and SilentWire(config.gradients_wire)
    skipping = Skipping(built.accumulation, comm.clock, alike, skips=alike and not config.chunks)
    return replace(
        built,
        accumulation=skipping,
        norms=NoSums(calls=calls, whole=config.whole),
        publishing=PublishedAhead(publishing(config, timed), comm.clock) if cluster.software.ahead else
        publishing(config, timed),
        collectives=replace(built.collectives, reduce_scatter=reduce_scatter(
            config, comm, allocate, silent_wire)),
        gathering=gathering(config, beside, wire),
        overlap=reducing if config.parallel.overlap else None,
        storage=storage,
        rule=rule,
    ), skipping, room


def uncounted_on(config: Config, cluster: Cluster) -> Uncounted:
    """A test for arrays without memory: registers of fused kernels, and the scores of a chunked loss."""
    registers = IN_REGISTERS if cluster.fused else frozenset[str]()
    scores = config.model.task.outputs if cluster.software.loss == "chunked" and config.model.task.tokens else 0

    def uncounted(shape: Any, owner: str | None) -> bool:
        return owner in registers or (isinstance(shape, tuple) and len(shape) > 1 and shape[-1] == scores)

    return uncounted


def counted_but(uncounted: Uncounted, counted: Allocator, *, fuses_sums: bool) -> Allocator:
    """The allocator `counted`, which does not count arrays without memory; with `fuses_sums`, gradients of 16 bits."""

    def allocate(shape: Any, dtype: Any, *, kind: Kind, owner: str) -> Any:
        summed = fuses_sums and kind == "gradients" and np.dtype(dtype).itemsize < FLOAT_BYTES
        return (extent if summed or uncounted(shape, owner) else counted)(shape, dtype, kind=kind, owner=owner)

    return allocate


def charged(taken: Allocator, comm: "Clocked") -> Allocator:
    """The allocator `taken`, whose arrays charge every call to the clock: the copies and sums in a stage's code."""

    def report(call: NumpyCall) -> None:
        if comm.begun:
            comm.clock.compute("copies", round(comm.costs.call_ns(call)))

    def allocate(shape: Any, dtype: Any, *, kind: Kind, owner: str) -> Any:
        found = taken(shape, dtype, kind=kind, owner=owner)
        return NotedExtent(found.shape, found.dtype, report=report)

    return allocate


class Clocked(Observed):
    """A communicator whose collectives take time and send no messages."""

    alike = True
    """Whether all ranks do the same at the same time."""

    def __init__(self, comm: Communicator, config: Config, costs: Costs) -> None:
        self.clock = VirtualClock(costs.cluster.device.taken_by_collectives)
        self.costs = costs
        self._groups = {unit.name: groups_of_unit(unit) for unit in config.model.units if unit.elsewhere}
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

        return self.over_groups(name, call)

    def over_groups(self, name: str, call: Callable[..., None]) -> Callable[..., None]:
        """`call` once for each group of ranks over which a unit's chunks are cut."""
        def calls(owner: str, comm: Communicator, *arguments: Any) -> None:
            groups = self._groups.get(owner) if name in CUT else None
            for each, theirs in one_by_one(groups, comm, *arguments) if groups else [(comm, arguments)]:
                call(owner, each, *theirs)

        return calls if self._groups else call


class Meetings:
    """The time at which the last rank reached each collective; all ranks call them in the same order."""

    def __init__(self) -> None:
        self._began_ns = Counter[int]()

    def come(self, number: int, at_ns: int) -> None:
        """Record that a rank has reached the collective with this number."""
        self._began_ns[number] = max(self._began_ns[number], at_ns)

    def began_ns(self, number: int) -> int:
        """The time at which all ranks have reached it."""
        return self._began_ns[number]


class Meeting(Clocked):
    """One rank's communicator: messages are counted, and a collective begins when all ranks have reached it."""

    alike = False

    def __init__(self, comm: Communicator, config: Config, costs: Costs, meetings: Meetings) -> None:
        super().__init__(comm, config, costs)
        self._everyone = comm
        self._meetings = meetings
        self._number = 0

    def named(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function` on shapes, as a timed collective."""

        def call(owner: str, comm: Communicator, *arguments: Any) -> None:
            before, number = self.clock.sent_counts["bytes"], self._number
            self._number += 1
            self._meetings.come(number, self.clock.free_ns)
            function(comm, *map(silent, arguments))
            dissemination.barrier(self._everyone)
            price = self.costs.of(comm).price(function, *arguments)
            sent_bytes = self.clock.sent_counts["bytes"] - before
            self.clock.communicate(name, price.ns, owner, sent_bytes, self._meetings.began_ns(number))

        return self.over_groups(name, call)
