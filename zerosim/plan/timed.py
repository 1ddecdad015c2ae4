"""The timed parts of a rehearsed replica: overlapped work, host memory, updates."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np

from zerosim.autograd.player import FLOAT_BYTES
from zerosim.collectives.narrow import WireFormat
from zerosim.comm import Communicator
from zerosim.core.allocation import Allocator, Array
from zerosim.core.precisions import Precision
from zerosim.models.units import Unit
from zerosim.plan.clock import VirtualClock
from zerosim.plan.cluster import Link
from zerosim.plan.costs import Costs
from zerosim.plan.sharing import Sharing
from zerosim.plan.software import Software
from zerosim.stages.replica import Beside, Pending, Publishing, Replica, Work
from zerosim.stages.update import UpdateRule


class Arriving(Pending):
    """An array that is available at a time of the clock."""

    def __init__(self, array: Array, ready_ns: int) -> None:
        done: Future[Array] = Future()
        done.set_result(array)
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

    allocate: Allocator
    software: Software
    sharing: Sharing
    replica: Replica | None = None
    """The replica whose updates these are, once it is made."""
    held: Any = None

    def take(self, gradient: Any) -> None:
        """Allocate the buffers, unless they are allocated."""
        if self.held is None and self.software.update_bytes and self.replica is not None:
            element_bytes = self.software.update_bytes + (FLOAT_BYTES if gradient.dtype.itemsize < FLOAT_BYTES else 0)
            layouts = self.replica.state.layouts
            trained = sum(layouts.of(unit, "optimizer").length * self.sharing.share(unit.name)
                          for unit in self.replica.trained)
            self.held = self.allocate(round(trained * element_bytes), np.uint8, kind="buffers", owner="update")

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
        self._take(unit, weights, gradient, state, [])

    def differences(self, unit: Unit, start: int, weights: Any, gradient: Any, state: Any, **named: Any) -> None:
        self._take(unit, weights, gradient, state, [named["out"]])

    def apply(self, unit: Unit, start: int, weights: Any, differences: Any, **_: Any) -> None:
        self._take(unit, weights, differences, {}, [])

    def of_matrices(self, unit: Unit, differences: Any, *, step: int) -> None:
        """Take the time to read and write the differences; a user's products of matrices take longer."""
        self.clock.compute("update", self.costs.update_ns(2 * differences.nbytes, on_host=self.on_host))

    def _take(self, unit: Unit, weights: Any, gradient: Any, state: Any, written: list[Any]) -> None:
        self.clock.wait(self.clock.due_ns)
        if not self.on_host:
            self.room.take(gradient)
        arrays = [weights, weights, *state.values(), *state.values(), gradient, *written]
        share = self.room.sharing.share(unit.name)
        moved = round(sum(len(array) * array.dtype.itemsize for array in arrays) * share)
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
