"""The timed parts of a rehearsed replica: its second channel, its updates, its wire formats."""

from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from zerosim.autograd.player import FLOAT_BYTES
from zerosim.collectives.narrow import WireFormat
from zerosim.core.allocation import Allocator, Array
from zerosim.core.comm import Communicator
from zerosim.models.units import Unit
from zerosim.observe.observed import ObservedObject
from zerosim.plan.clock import VirtualClock
from zerosim.plan.costs import Costs
from zerosim.plan.sharing import Sharing
from zerosim.stages.replica import Replica
from zerosim.stages.second_channel import Pending, SecondChannel, Work
from zerosim.stages.update import UpdateRule
from zerosim.verdict.shapes import NoNumbers


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


class TimedUpdates(NoNumbers):
    """An update rule that leaves weights and state unchanged and takes the time to read and write them.

    The first update of a step allocates the buffers of an optimizer step over all parameters, which later updates
    share; software that has such buffers also holds 16-bit gradients widened to 32 bits there. An update on the host
    allocates nothing on the device.
    """

    replica: Replica
    """The replica whose updates these are, once it is made."""

    def __init__(
        self, rule: UpdateRule, clock: VirtualClock, costs: Costs, sharing: Sharing, allocate: Allocator, *,
        on_host: bool,
    ) -> None:
        super().__init__(rule)
        self._clock, self._costs, self._sharing, self._allocate = clock, costs, sharing, allocate
        self._on_host = on_host
        self.buffers: Any = None
        """The buffers, from the first update to the end of the step."""

    def update(
        self, unit: Unit, start: int, weights: Any, gradient: Any, state: Any, *, out: Any = None, **_: Any
    ) -> None:
        self._clock.wait(self._clock.due_ns)
        cluster, share = self._costs.cluster, self._sharing.share     # states in 8 bits have fused kernels
        update_bytes = 0.0 if cluster.tuning.states_in_8_bits else cluster.software.update_bytes
        if update_bytes and self.buffers is None and not self._on_host:
            placement, wide = self.replica.state.placement, FLOAT_BYTES * (gradient.dtype.itemsize < FLOAT_BYTES)
            trained = sum(placement.of(unit, "optimizer").length * share(unit.name) for unit in self.replica.trained)
            self.buffers = self._allocate(
                round(trained * (update_bytes + wide)), np.uint8, kind="buffers", owner="update")
        arrays = [weights, weights, *state.values(), *state.values(), gradient, *([] if out is None else [out])]
        self._take(sum(len(array) * array.dtype.itemsize for array in arrays) * share(unit.name))

    def apply(self, unit: Unit, start: int, weights: Any, differences: Any, **_: Any) -> None:
        self.update(unit, start, weights, differences, {})

    def of_matrices(self, unit: Unit, differences: Any, *, step: int) -> None:
        """Take the time to read and write the differences; a user's products of matrices take longer."""
        self._take(2 * differences.nbytes)

    def _take(self, moved_bytes: float) -> None:
        self._clock.compute("update", self._costs.update_ns(round(moved_bytes), on_host=self._on_host))


def timed_wire(wire: WireFormat, clock: VirtualClock, costs: Costs) -> Any:
    """A wire format that writes nothing and takes the time to read and write numbers and codes.

    Encoding reads its numbers twice, for scales and for codes.
    """
    def take(moved_bytes: int) -> None:
        clock.compute("quantization", costs.moved_ns(moved_bytes))

    return ObservedObject(wire, {
        "encode": lambda x, out: take(2 * x.nbytes + out.nbytes), "decode": lambda x, out: take(x.nbytes + out.nbytes)})
