"""The timed parts of a rehearsed replica: its second channel, its updates, its wire formats."""

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from zerosim.autograd.player import FLOAT_BYTES
from zerosim.collectives.narrow import WireFormat
from zerosim.core.allocation import Allocator, Array
from zerosim.core.comm import Communicator
from zerosim.core.precisions import Precision
from zerosim.models.units import Unit
from zerosim.observe.observed import ObservedObject
from zerosim.plan.clock import VirtualClock
from zerosim.plan.costs import Costs
from zerosim.plan.sharing import Sharing
from zerosim.stages.replica import Replica
from zerosim.stages.second_channel import Pending, SecondChannel, Work
from zerosim.stages.update import UpdateRule


class TimedChannel(SecondChannel):
    """Overlapped work in the clock's stream; the step waits where its result is used, or only at its update."""

    def __init__(self, comm: Communicator, clock: VirtualClock, *, until_update: bool = False) -> None:
        super().__init__(comm)
        self._clock, self._until_update = clock, until_update
        self._ready_ns = WeakKeyDictionary[Pending, int]()

    def begin(self, work: Work) -> Pending:
        with self._clock.overlapped():
            pending = super().begin(work)
        self._ready_ns[pending] = self._clock.stream_ns
        return pending

    def wait(self, unit: Unit, pending: Pending) -> Array:
        if self._until_update:
            self._clock.due_ns = max(self._ready_ns[pending], self._clock.due_ns)
        else:
            self._clock.wait(self._ready_ns[pending])
        return pending.take()


@dataclass(eq=False)
class TimedUpdates:
    """An update rule that leaves weights and state unchanged and takes the time to read and write them.

    The first update of a step allocates the buffers of an optimizer step over all parameters, which later updates
    share; software that has such buffers also holds 16-bit gradients widened to 32 bits there. An update on the host
    allocates nothing on the device.
    """

    rule: UpdateRule
    clock: VirtualClock
    costs: Costs
    sharing: Sharing
    allocate: Allocator
    on_host: bool = False
    replica: Replica | None = None
    """The replica whose updates these are, once it is made."""
    buffers: Any = None
    """The buffers, from the first update to the end of the step."""

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
        cluster = self.costs.cluster     # states in 8 bits have fused kernels
        update_bytes = 0.0 if cluster.tuning.states_in_8_bits else cluster.software.update_bytes
        if update_bytes and self.buffers is None and self.replica is not None and not self.on_host:
            layouts, wide = self.replica.state.layouts, FLOAT_BYTES * (gradient.dtype.itemsize < FLOAT_BYTES)
            trained = sum(layouts.of(unit, "optimizer").length * self.sharing.share(unit.name)
                          for unit in self.replica.trained)
            self.buffers = self.allocate(
                round(trained * (update_bytes + wide)), np.uint8, kind="buffers", owner="update")
        arrays = [weights, weights, *state.values(), *state.values(), gradient, *written]
        moved = round(sum(len(array) * array.dtype.itemsize for array in arrays) * self.sharing.share(unit.name))
        self.clock.compute("update", self.costs.update_ns(moved, on_host=self.on_host))


def timed_wire(wire: WireFormat, clock: VirtualClock, costs: Costs) -> Any:
    """A wire format that writes nothing and takes the time to read and write numbers and codes.

    Encoding reads its numbers twice, for scales and for codes.
    """
    def take(moved_bytes: int) -> None:
        clock.compute("quantization", costs.moved_ns(moved_bytes))

    return ObservedObject(wire, {
        "encode": lambda x, out: take(2 * x.nbytes + out.nbytes), "decode": lambda x, out: take(x.nbytes + out.nbytes)})
