"""A step on shapes alone: the stage's own text, with a memory ledger and a clock, without memory.

All ranks go at once, in the lockstep world: a rank is a vector, so that what is found holds for each of them. Where
the text has ranks do different things, that world says so, and each goes by itself in the local world: there messages
travel, and collectives begin when the last rank has come. A collective costs what `costs` says; an operation too, and
what it has in memory is seen once for each shape.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from zerosim.allocation import Allocator, Array, Kind
from zerosim.autograd.graph import Step
from zerosim.autograd.player import perform
from zerosim.autograd.shelf import Offloaded
from zerosim.collectives import dissemination
from zerosim.comm import Communicator
from zerosim.errors import Unlike, ZerosimError
from zerosim.instruments.memory import Ledger
from zerosim.instruments.observed import Observed, ObservedAllocator, telling
from zerosim.instruments.trace import WAIT
from zerosim.models.units import Unit
from zerosim.optim.update import UpdateRule
from zerosim.plan import activations
from zerosim.plan.activations import extent, nothing_drawn
from zerosim.plan.clock import Clock
from zerosim.plan.cluster import Cluster
from zerosim.plan.costs import Costs, of_rank
from zerosim.plan.turns import Turns
from zerosim.sharding import padded
from zerosim.stages.beside import Beside, Coming, Work
from zerosim.stages.replica import Batch, Replica
from zerosim.training.build import gathering, replica
from zerosim.training.config import Config
from zerosim.worlds.local import LocalWorld
from zerosim.worlds.lockstep import LockstepWorld

MOST_APART = 64
"""Ranks that are rehearsed one by one."""

IN_REGISTERS = frozenset({"widened"})
"""Owners of what a device has in its registers: copies of 16-bit numbers in 32 bits."""

SEEN_PARTS = 3
"""How many micro-batches that are reduced by themselves are run: all further ones take what the third took."""


@dataclass(frozen=True)
class Rehearsal:
    """What one step holds, takes and sends on a rank."""

    resting: Counter[Kind]
    peak: Counter[Kind]
    peak_total: int
    clock: Clock
    operations: Counter[str]
    """Floating-point operations of matrix products, in forward, backward and recomputation."""

    def sent(self, rank: int) -> dict[str, int]:
        """The bytes and the messages that a rank sends."""
        return {what: of_rank(count, rank) for what, count in self.clock.sent.items()}


def rehearse(config: Config, cluster: Cluster) -> Rehearsal:
    """One step of a row on a cluster: what holds for every rank or, where they differ, for the worst off.

    Raises `ZerosimError` where gradients are added in no order: what that costs depends on their values.
    """
    if config.addition.collective is None:
        raise ZerosimError(f"{config.name}: order exact adds integers, which no plan counts; take ring, rank or tree")
    try:
        return rehearsed_at_once(config, cluster)
    except Unlike as unlike:
        if config.ranks > MOST_APART:
            raise ZerosimError(
                f"{config.name}: {unlike}, and at most {MOST_APART} are planned one by one; set world.ranks to that"
            ) from unlike
        return worst(rehearsed_apart(config, cluster))


def rehearsed_at_once(config: Config, cluster: Cluster) -> Rehearsal:
    """Of all ranks, as vectors. Raises `Unlike` where they do different things."""
    asked = costs(config, cluster)
    (found,) = LockstepWorld(config.ranks).run(lambda comm: rehearsed(config, Clocked(comm, asked)))
    return found


def rehearsed_apart(config: Config, cluster: Cluster) -> list[Rehearsal]:
    """Of each rank by itself; messages are sent, and counted one by one."""
    asked, meetings = costs(config, cluster), Meetings()
    return LocalWorld(config.ranks).run(lambda comm: rehearsed(config, Meeting(comm, asked, meetings)))


def costs(config: Config, cluster: Cluster) -> Costs:
    return Costs(cluster, config.ranks, config.precision.weights.itemsize)


def worst(ranks: Sequence[Rehearsal]) -> Rehearsal:
    """The slowest rank, with the most memory that any has."""
    slowest = max(ranks, key=lambda rank: rank.clock.now_ns)
    resting, peak = Counter[Kind](), Counter[Kind]()
    for rank in ranks:
        resting |= rank.resting
        peak |= rank.peak
    return replace(slowest, resting=resting, peak=peak, peak_total=max(rank.peak_total for rank in ranks))


def rehearsed(config: Config, comm: "Clocked") -> Rehearsal:
    """What a step takes of whom `comm` speaks for: of one rank, or of all at once."""
    ledger = Ledger()
    mine = on_shapes(config, comm, ledger, Performer(comm.clock, comm.costs))
    mine.begin(lambda unit: extent(padded(unit.count, comm.size), np.float32, kind="parameters", owner=unit.name))
    ledger.begin_peak()
    config.stage.step(mine, whole_batch(config))
    return Rehearsal(
        resting=Counter(ledger.now), peak=Counter(ledger.peak), peak_total=ledger.peak_total, clock=comm.clock,
        operations=Counter(mine.tape.operations),
    )


def on_shapes(config: Config, comm: "Clocked", ledger: Ledger, performer: "Performer") -> "Rehearsing":
    """A replica of a row that has no numbers."""
    uncounted = IN_REGISTERS if comm.costs.cluster.fused else frozenset[str]()
    allocate = counted_but(uncounted, ObservedAllocator(extent, ledger))
    turns = Turns(ledger.pass_by, uncounted, performer.carry_out, performer.charge)
    built = replica(config, comm, allocate, perform=performer.perform, players=turns.player)
    if config.row.parallel.offload_activations:
        built.tape.shelf = Offloaded(activations.Nowhere(), allocate)
    beside = telling(OnTheClock(comm, comm.clock), comm.instruments, wait=WAIT)
    rule = Timed(**vars(config.rule), clock=comm.clock, costs=comm.costs)
    changed = replace(
        built,
        gathering=gathering(config, beside),
        overlap=beside if config.row.parallel.overlap else None,
        rule=telling(rule, comm.instruments, update="update", differences="update", apply="update"),
    )
    return Rehearsing(**vars(changed), clock=comm.clock, passes=config.passes)


def whole_batch(config: Config) -> Batch:
    """A rank's micro-batches; of those that are reduced by themselves, as many as are run."""
    inputs, targets = activations.batch(config)
    count = min(config.block, SEEN_PARTS) if config.part_by_part else config.block
    return Batch(1, [inputs] * count, [targets] * count, config.samples, 0)


def counted_but(uncounted: Collection[str], counted: Allocator) -> Allocator:
    """As `counted`, but for arrays of these owners."""

    def allocate(shape: Any, dtype: Any, *, kind: Kind, owner: str) -> Any:
        return (extent if owner in uncounted else counted)(shape, dtype, kind=kind, owner=owner)

    return allocate


class Clocked(Observed):
    """A communicator of which collectives take time, and nothing else: no message is sent."""

    def __init__(self, comm: Communicator, costs: Costs) -> None:
        self.clock = Clock()
        self.costs = costs
        super().__init__(comm, self.clock)

    def named(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function` on the clock."""

        def call(owner: str, comm: Communicator, *arguments: Any) -> None:
            price = self.costs.price(function, *arguments)
            self.clock.communicate(name, price.ns, owner, of_rank(price.sent_bytes, 0))
            self.clock.send(price.sent_bytes, price.messages)

        return call


class Meetings:
    """When the last rank came to each collective, of all that ranks call in the same order."""

    def __init__(self) -> None:
        self._began_ns = Counter[int]()

    def come(self, number: int, at_ns: int) -> None:
        """A rank has come to the collective with this number."""
        self._began_ns[number] = max(self._began_ns[number], at_ns)

    def began_ns(self, number: int) -> int:
        """Once all have come."""
        return self._began_ns[number]


class Meeting(Clocked):
    """One rank's communicator: messages travel and are counted, and a collective begins when all ranks have come."""

    def __init__(self, comm: Communicator, costs: Costs, meetings: Meetings) -> None:
        super().__init__(comm, costs)
        self._sent = (lambda outgoing, _: self.clock.send(outgoing.nbytes, 1),)
        self._meetings = meetings
        self._number = 0

    def named(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, on shapes, and on the clock."""

        def call(owner: str, comm: Communicator, *arguments: Any) -> None:
            before, number = self.clock.sent["bytes"], self._number
            self._number += 1
            self._meetings.come(number, self.clock.free_ns)
            function(comm, *arguments)
            dissemination.barrier(self._comm)
            price, sent_bytes = self.costs.price(function, *arguments), self.clock.sent["bytes"] - before
            self.clock.communicate(name, price.ns, owner, sent_bytes, self._meetings.began_ns(number))

        return call


@dataclass(eq=False)
class Rehearsing(Replica):
    """A replica whose micro-batches, after the third that is reduced by itself, take what that took."""

    clock: Clock = field(kw_only=True)
    passes: int = field(kw_only=True)

    def parts(self, batch: Batch) -> Iterator[Batch]:
        readings, operations = [], []
        for part in super().parts(batch):
            yield part
            readings.append(self.clock.reading())
            operations.append(Counter(self.tape.operations))
        left = self.passes - len(readings)
        if left > 0:
            self.clock.repeat(left, *readings[-2:])
            self._repeat_counts(left, *operations[-2:])

    def _repeat_counts(self, times: int, before: Counter[str], after: Counter[str]) -> None:
        for what in after:
            self.tape.operations[what] += times * (after[what] - before[what])

    def _chunk_sums(self, chunk: int) -> list[float]:
        """Nothing to sum."""
        return [0.0 for unit in self.units if not unit.frozen]


class Arriving(Coming):
    """An array that is there when the clock says so."""

    def __init__(self, found: Array, ready_ns: int) -> None:
        done: Future[Array] = Future()
        done.set_result(found)
        super().__init__(done)
        self.ready_ns = ready_ns


class OnTheClock(Beside):
    """What goes on beside the step takes place in the clock's stream, and the step waits for it where it is wanted."""

    def __init__(self, comm: Communicator, clock: Clock) -> None:
        super().__init__(comm)
        self._clock = clock

    def begin(self, work: Work) -> Coming:
        with self._clock.beside():
            return Arriving(super().begin(work).take(), self._clock.stream_ns)

    def wait(self, unit: Unit, coming: Coming) -> Array:
        assert isinstance(coming, Arriving)
        self._clock.wait(coming.ready_ns)
        return coming.take()


@dataclass(frozen=True)
class Timed(UpdateRule):
    """A rule that leaves weights and state as they are, and takes the time of reading and writing them."""

    clock: Clock = field(kw_only=True)
    costs: Costs = field(kw_only=True)

    def update(self, unit: Unit, start: int, weights: Any, gradient: Any, state: Any, **_: Any) -> None:
        self._take(weights, gradient, state, [])

    def differences(self, unit: Unit, start: int, weights: Any, gradient: Any, state: Any, **named: Any) -> None:
        self._take(weights, gradient, state, [named["out"]])

    def apply(self, unit: Unit, start: int, weights: Any, differences: Any, **_: Any) -> None:
        self._take(weights, differences, {}, [])

    def _take(self, weights: Any, gradient: Any, state: Any, written: list[Any]) -> None:
        both_ways = [weights, *state.values()]
        moved = 2 * sum(each.nbytes for each in both_ways) + sum(each.nbytes for each in [gradient, *written])
        self.clock.compute("update", self.costs.moved_ns(moved))


@dataclass(frozen=True, eq=False)
class Performer:
    """Carries out a tape's operations on shapes: they take time, and of fused ones only what is kept has memory."""

    clock: Clock
    costs: Costs

    def perform(self, step: Step | None, function: Callable[..., Any], *arrays: Any, **named: Any) -> Any:
        if step is None:
            self.clock.compute("loss", self.costs.loss_ns(arrays[0].shape))
            return function(*arrays, **named)
        self.charge(step, function)
        return self.carry_out(step, function, *arrays, **named)

    def charge(self, step: Step, function: Callable[..., Any]) -> None:
        """Let an operation take its time."""
        if function is step.instruction.operation.forward:
            self.clock.compute("forward", *self.costs.forward(step))
        else:
            self.clock.compute("backward", *self.costs.backward(step))

    def carry_out(self, step: Step, function: Callable[..., Any], *arrays: Any, **named: Any) -> Any:
        """In no time."""
        if named.get("draws"):
            named["draws"] = nothing_drawn
        return (kept_by_fused if self.costs.cluster.fused else perform)(step, function, *arrays, **named)


def kept_by_fused(step: Step, function: Callable[..., Any], *arrays: Any, empty: Any, **named: Any) -> Any:
    """A fused kernel's work is in registers, and of what it saves a number for each row is enough."""
    if function is step.instruction.operation.backward:
        return None
    saved = function(*arrays, empty=in_registers, **named)
    return None if saved is None else empty(saved.shape[:-1], np.float32)


def in_registers(shape: Any, dtype: Any) -> Any:
    return extent(shape, dtype, kind="buffers", owner="registers")
