"""The timed parts of a rehearsed replica: overlapped work, host memory, updates."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from zerosim.autograd.player import FLOAT_BYTES
from zerosim.collectives.narrow import WireFormat
from zerosim.core.allocation import Allocator, Array
from zerosim.core.comm import Communicator
from zerosim.core.precisions import Precision
from zerosim.models.units import Unit
from zerosim.plan.clock import VirtualClock
from zerosim.plan.cluster import Link
from zerosim.plan.costs import Costs
from zerosim.plan.software import Software
from zerosim.stages.pipeline import Pipeline
from zerosim.stages.replica import Batch, Beside, Pending, Publishing, Replica, Work
from zerosim.stages.update import UpdateRule


class Arriving(Pending):
    """An array that is available at a time of the clock."""

    def __init__(self, found: Array, ready_ns: int) -> None:
        done: Future[Array] = Future()
        done.set_result(found)
        super().__init__(done)
        self.ready_ns = ready_ns


class OnTheClock(Beside):
    """Overlapped work in the clock's stream; the step waits for it where its result is used."""

    def __init__(self, comm: Communicator, clock: VirtualClock) -> None:
        super().__init__(comm)
        self._clock = clock

    def begin(self, work: Work) -> Pending:
        with self._clock.beside():
            return Arriving(super().begin(work).take(), self._clock.stream_ns)

    def wait(self, unit: Unit, pending: Pending) -> Array:
        assert isinstance(pending, Arriving)
        self._clock.wait(pending.ready_ns)
        return pending.take()


class UntilUpdate(OnTheClock):
    """Overlapped reductions for which the step waits at its update only."""

    def wait(self, unit: Unit, pending: Pending) -> Array:
        assert isinstance(pending, Arriving)
        self._clock.due_ns = max(pending.ready_ns, self._clock.due_ns)
        return pending.take()


@dataclass(frozen=True)
class PublishedAhead:
    """The publishing `whole` of weights, whose collectives run beside the next step's first forward."""

    whole: Publishing
    clock: VirtualClock

    def update(self, replica: Replica, unit: Unit, weights: Array) -> None:
        self.whole.update(replica, unit, weights)

    def publish(self, replica: Replica, unit: Unit, full: Array) -> None:
        with self.clock.beside():
            self.whole.publish(replica, unit, full)


@dataclass(frozen=True)
class TimedCopies:
    """Copies to the host's memory and back, which carry no data and take the time of a link once the step has begun."""

    clock: VirtualClock
    link: Link
    begun: Callable[[], bool]

    def __call__(self, what: str, owner: str, into: Any, source: Any) -> None:
        if self.begun():
            self.clock.carry(what, owner, self.link.message_ns(source.nbytes), source.nbytes)


@dataclass(eq=False)
class UpdateRoom:
    """The buffers of an optimizer step over all parameters, from the first update to the end of the step.

    Software that has such buffers also holds 16-bit gradients widened to 32 bits there.
    """

    replica: Replica
    allocate: Allocator
    software: Software
    held: Any = None

    def take(self, gradient: Any) -> None:
        """Allocate the buffers, unless they are allocated."""
        if self.held is None and self.software.update_bytes:
            each = self.software.update_bytes + (FLOAT_BYTES if gradient.dtype.itemsize < FLOAT_BYTES else 0)
            layouts = self.replica.state.layouts
            trained = sum(layouts.of(unit, "optimizer").length for unit in self.replica.trained)
            self.held = self.allocate(round(trained * each), np.uint8, kind="buffers", owner="update")

    def release(self) -> None:
        """Free the buffers."""
        self.held = None


@dataclass(frozen=True)
class Timed:
    """An update rule that leaves weights and state unchanged and takes the time to read and write them.

    The first update allocates `room`, which later updates share. An update on the host allocates nothing on the
    device.
    """

    rule: UpdateRule
    clock: VirtualClock
    costs: Costs
    room: "UpdateRoom"
    on_host: bool = False

    @property
    def slots(self) -> tuple[str, ...]:
        return self.rule.slots

    @property
    def precision(self) -> Precision:
        return self.rule.precision

    def update(self, unit: Unit, start: int, weights: Any, gradient: Any, state: Any, **_: Any) -> None:
        self._take(weights, gradient, state, [])

    def differences(self, unit: Unit, start: int, weights: Any, gradient: Any, state: Any, **named: Any) -> None:
        self._take(weights, gradient, state, [named["out"]])

    def apply(self, unit: Unit, start: int, weights: Any, differences: Any, **_: Any) -> None:
        self._take(weights, differences, {}, [])

    def of_matrices(self, unit: Unit, differences: Any, *, step: int) -> None:
        """Take the time to read and write the differences; a user's products of matrices take longer."""
        self.clock.compute("update", self.costs.update_ns(2 * differences.nbytes, on_host=self.on_host))

    def _take(self, weights: Any, gradient: Any, state: Any, written: list[Any]) -> None:
        self.clock.wait(self.clock.due_ns)
        if not self.on_host:
            self.room.take(gradient)
        both_ways = [weights, *state.values()]
        moved = 2 * sum(each.nbytes for each in both_ways) + sum(each.nbytes for each in [gradient, *written])
        self.clock.compute("update", self.costs.update_ns(moved, on_host=self.on_host))


@dataclass(frozen=True)
class TimedWire:
    """A wire format that writes nothing and takes the time to read and write numbers and codes.

    Encoding reads its numbers twice, for scales and for codes.
    """

    wire: WireFormat
    clock: VirtualClock
    costs: Costs

    def encoded_bytes(self, count: int) -> int:
        return self.wire.encoded_bytes(count)

    def encode(self, x: Any, out: Any) -> None:
        self.clock.compute("quantization", self.costs.moved_ns(2 * x.nbytes + out.nbytes))

    def decode(self, coded: Any, out: Any) -> None:
        self.clock.compute("quantization", self.costs.moved_ns(coded.nbytes + out.nbytes))


@dataclass(eq=False)
class KeepingOutputs(Pipeline):
    """A pipeline that keeps what it has sent until the backward of the micro-batch, if the software `keeps` it."""

    keeps: bool = field(kw_only=True)
    _sent: dict[tuple[int, int], list[Array]] = field(default_factory=dict)

    def compute(self, what: str, part: Batch, chunk: int, given: list[Array]) -> list[Array]:
        self._sent.pop((part.first, chunk), None)
        found = super().compute(what, part, chunk, given)
        if self.keeps and what == "F":
            self._sent[part.first, chunk] = found
        return found
