"""The storage of a rank's model states, and transfers of those that are not in the device's memory.

    device    memory for computation, to which a memory limit applies
    host      memory beside it, in which a CPU can update
    disk      a file
    queue     transfers arrays between tiers, one after the other, beside the step

ZeRO-Offload (Ren et al., 2021) keeps optimizer state and reduced gradients on the host and updates there; ZeRO-Infinity
(Rajbhandari et al., 2021) keeps them, and the shards of the weights, in files.

- States are arrays in every tier, so comparisons, checkpoints and resharding read them like any other.
- Nothing is computed with an array of another tier. It is copied to a staging array first, which the ledger counts.
- The step's thread allocates and frees staging arrays, at points that do not depend on thread timing.
- The optimizer state of the next unit is prefetched in the order of the model, in which stages update. In a
  different order a run would be slower, with the same bits.
- A unit's state has one staging array. Pieces of fixed length, as in DeepSpeed, would bound the host's memory.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy.typing as npt

from zerosim.allocation import Allocator, Array, Kind, Tier
from zerosim.models.units import Unit
from zerosim.numerics.precisions import Precision
from zerosim.optim.update import DELAYED, MASTER, WeightUpdates
from zerosim.stages.state import TrainingState


class CopyQueue(Protocol):
    """Transfers arrays between tiers, in the order of the calls."""

    def begin(self, what: str, owner: str, into: Array, source: Array) -> Any:
        """Start to copy `source` to `into`, which the caller may use after waiting for the returned handle."""

    def call(self, what: str, owner: str, work: Callable[[], None]) -> Any:
        """Start `work` on the host, after all earlier copies."""

    def wait(self, owner: str, moving: Any) -> None:
        """Wait for a copy or for work; raises its exception."""

    def settle(self) -> None:
        """Wait for all copies."""

    def close(self) -> None:
        """Close the queue."""


@dataclass(frozen=True)
class FarMemory:
    """The memory tiers beside the device's, and the queue to them."""

    rooms: Mapping[Tier, Allocator]
    queue: CopyQueue


@dataclass(frozen=True)
class Storage:
    """The storage of model states: the tier of each kind, the memory of each tier, and the queue between tiers.

    A kind without a tier is on the device.
    """

    tiers: Mapping[Kind, Tier]
    rooms: Mapping[Tier, Allocator]
    queue: CopyQueue
    begins: Callable[[int], None] | None = None
    """The work to start with each step, if there is any."""

    def tier(self, kind: Kind) -> Tier:
        return self.tiers.get(kind, "device")

    def room(self, kind: Kind) -> Allocator:
        """The allocator of arrays of a kind."""
        return self.rooms[self.tier(kind)]

    def keep(self, owner: str, array: Array, dtype: npt.DTypeLike, kind: Kind) -> Array:
        """A copy of `array`, which is on the device, in the memory of its kind."""
        copy = self.room(kind)(len(array), dtype, kind=kind, owner=owner)
        tier = self.tier(kind)
        if tier == "device":
            copy[:] = array
        else:
            self.queue.wait(owner, self.queue.begin(carried(kind, "device", tier), owner, copy, array))
        return copy

    def begin_step(self, step: int) -> None:
        """Start the work that runs beside a step."""
        if self.begins is not None:
            self.begins(step)

    def settle(self) -> None:
        """End a step: wait for all transfers."""
        if self.tiers:
            self.queue.settle()

    def close(self) -> None:
        self.queue.close()


def carried(kind: Kind, source: Tier, into: Tier) -> str:
    """A description of a transfer.

    >>> carried("gradients", "device", "host")
    'gradients, device to host'
    """
    return f"{kind}, {source} to {into}"


@dataclass(frozen=True)
class Shards:
    """This rank's shards of the weights, from which Stage III gathers; on the device, for reading only.

    A shard in another tier is fetched while the device computes with the previous unit.
    """

    storage: Storage
    state: TrainingState
    _pending: dict[Unit, tuple[Array, Any]] = field(default_factory=dict)

    def begin(self, unit: Unit) -> None:
        """Start to fetch the shard; each call is followed by one of `take`."""
        tier = self.storage.tier("parameters")
        if tier != "device" and unit not in self._pending:
            far = self.state.weights[unit]
            near = self.storage.rooms["device"](len(far), far.dtype, kind="parameters", owner=unit.name)
            what = carried("parameters", tier, "device")
            self._pending[unit] = near, self.storage.queue.begin(what, unit.name, near, far)

    def take(self, unit: Unit) -> Array:
        self.begin(unit)
        if unit not in self._pending:
            return self.state.weights[unit]
        near, moving = self._pending.pop(unit)
        self.storage.queue.wait(unit.name, moving)
        return near


@dataclass(frozen=True)
class Operand:
    """An array that an update reads or writes, in its tier."""

    kind: Kind
    home: Array
    read: bool
    written: bool


Operands = dict[str, Operand]


def slots_of(state: Mapping[str, Array]) -> Operands:
    return {slot: Operand("optimizer", array, read=True, written=True) for slot, array in state.items()}


@dataclass(frozen=True)
class StoredUpdates:
    """An update rule on states in a storage."""

    rule: WeightUpdates
    storage: Storage
    state: TrainingState
    order: Sequence[Unit]
    """The trained units, in the order of their updates."""

    @property
    def slots(self) -> tuple[str, ...]:
        return self.rule.slots

    @property
    def precision(self) -> Precision:
        return self.rule.precision


@dataclass(frozen=True)
class FarUpdates(StoredUpdates):
    """An update rule that fetches its operands to the updating tier and stores the results.

    The host updates if the optimizer state is not on the device. Files are read one unit ahead, and written one unit
    behind.
    """

    _ahead: dict[Unit, dict[str, tuple[Array, Any]]] = field(default_factory=dict)
    _behind: deque[list[tuple[str, Array, Any]]] = field(default_factory=deque)
    """The writes to files under way for the last two units, with their staging arrays."""

    @property
    def updates_on(self) -> Tier:
        """The tier in which the update is computed."""
        return "device" if self.storage.tier("optimizer") == "device" else "host"

    def update(
        self, unit: Unit, start: int, weights: Array, gradient: Array, state: Mapping[str, Array], **about: Any
    ) -> None:
        """The rule's update, on operands in any tier."""
        operands = self._operands(weights, gradient, state)
        here = self._brought(unit, operands)
        slots = {slot: here[slot] for slot in state}
        self.rule.update(unit, start, here["weights"], here["gradient"], slots, **about)
        self._put_back(unit, operands, here)

    def differences(
        self, unit: Unit, start: int, weights: Array, gradient: Array, state: Mapping[str, Array], *, out: Array,
        **about: Any,
    ) -> None:
        """The rule's differences in `out`, which is on the device."""
        operands = self._operands(weights, gradient, state) | {"out": Operand("buffers", out, read=False, written=True)}
        operands["weights"] = Operand("parameters", weights, read=MASTER not in state, written=False)
        here = self._brought(unit, operands)
        slots = {slot: here[slot] for slot in state}
        self.rule.differences(unit, start, here["weights"], here["gradient"], slots, out=here["out"], **about)
        self._put_back(unit, operands, here)

    def apply(self, unit: Unit, start: int, weights: Array, differences: Array, *, step: int) -> None:
        """Apply differences on the device, where they arrive."""
        self.rule.apply(unit, start, weights, differences, step=step)

    def _operands(self, weights: Array, gradient: Array, state: Mapping[str, Array]) -> Operands:
        """The operands of an update; weights are read only if there is no master copy."""
        return {
            "weights": Operand("parameters", weights, read=MASTER not in state, written=True),
            "gradient": Operand("gradients", gradient, read=True, written=False),
            **slots_of(state),
        }

    def _brought(self, unit: Unit, operands: Operands) -> dict[str, Array]:
        """All operands in the updating tier; also starts to read the next unit's files."""
        if self.updates_on == "device":
            self._give_back(but=0)
        pending = self._ahead.pop(unit, {})
        pending |= {name: self._begin(unit, each) for name, each in operands.items() if name not in pending}
        for _, moving in pending.values():
            if moving is not None:
                self.storage.queue.wait(unit.name, moving)
        self._give_back(but=1)
        after = self.order[self.order.index(unit) + 1 :][:1]
        for upcoming in after if self.updates_on == "host" else ():
            files = self._operands(self.state.weights[upcoming], self.state.weights[upcoming],
                                   self.state.optimizer[upcoming])
            del files["gradient"]
            self._ahead[upcoming] = {
                name: self._begin(upcoming, each) for name, each in files.items()
                if self.storage.tier(each.kind) == "disk"}
        return {name: array for name, (array, _) in pending.items()}

    def _begin(self, unit: Unit, operand: Operand) -> tuple[Array, Any]:
        """The operand itself or, if it is in another tier, a staging array and the transfer that fills it."""
        tier, home = self.storage.tier(operand.kind), operand.home
        if tier == self.updates_on:
            return home, None
        staged = self.storage.rooms[self.updates_on](len(home), home.dtype, kind=operand.kind, owner=unit.name)
        if not operand.read:
            return staged, None
        return staged, self.storage.queue.begin(carried(operand.kind, tier, self.updates_on), unit.name, staged, home)

    def _put_back(self, unit: Unit, operands: Operands, here: Mapping[str, Array]) -> None:
        """Store the written operands: to the device at once, to files during the next unit's update."""
        behind = []
        for name, operand in operands.items():
            tier = self.storage.tier(operand.kind)
            if operand.written and tier != self.updates_on:
                what, near = carried(operand.kind, self.updates_on, tier), here[name]
                behind.append((unit.name, near, self.storage.queue.begin(what, unit.name, operand.home, near)))
                if tier == "device":
                    self.storage.queue.wait(*behind.pop()[::2])
        self._behind.append(behind)
        if unit == self.order[-1]:
            self._give_back(but=0)

    def _give_back(self, *, but: int) -> None:
        """Free written staging arrays, except those of the last `but` units."""
        while len(self._behind) > but:
            for owner, _, moving in self._behind.popleft():
                self.storage.queue.wait(owner, moving)


class LateUpdates(WeightUpdates, Protocol):
    """A rule that can keep a gradient until the next step."""

    def delay(self, kept: Array, gradient: Array, factor: float) -> None: ...


@dataclass(frozen=True)
class DelayedUpdates(StoredUpdates):
    """An update rule by which the host updates during the next step; the new weights arrive at that step's end.

    So a step applies the update of the step before, with that step's learning rate, count and factor. This is the
    one-step delayed parameter update of ZeRO-Offload. State is on the host, weights are on the device.
    """

    rule: LateUpdates
    _pending: dict[Unit, tuple[Array, Any]] = field(default_factory=dict)

    def begin_step(self, step: int) -> None:
        """Start the host's update of every unit with the gradient of the step before, if there is one."""
        for unit in self.order if self.state.updates else ():
            slots, layout = self.state.optimizer[unit], self.state.layouts.of(unit, "optimizer")
            whole = self.state.layouts.of(unit, "parameters")
            weights = whole.part(self.state.weights[unit], layout)
            staged = self.storage.rooms["host"](len(weights), weights.dtype, kind="parameters", owner=unit.name)
            if MASTER not in slots:
                self.storage.queue.begin(carried("parameters", "device", "host"), unit.name, staged, weights)
            self._pending[unit] = staged, self.storage.queue.call("update", unit.name, partial(
                self.rule.update, unit, layout.start, staged, slots[DELAYED], slots,
                step=step - 1, count=self.state.updates, factor=1.0))

    def update(
        self, unit: Unit, start: int, weights: Array, gradient: Array, state: Mapping[str, Array], *, step: int,
        count: int, factor: float,
    ) -> None:
        """Apply the host's update, and keep the gradient for the next step."""
        if unit in self._pending:
            staged, updated = self._pending.pop(unit)
            self.storage.queue.wait(unit.name, updated)
            self.storage.queue.wait(unit.name, self.storage.queue.begin(
                carried("parameters", "host", "device"), unit.name, weights, staged))
        room, near = self.storage.rooms["host"], self.storage.tier("gradients") == "device"
        arrived = room(len(gradient), gradient.dtype, kind="gradients", owner=unit.name) if near else gradient
        if near:
            what = carried("gradients", "device", "host")
            self.storage.queue.wait(unit.name, self.storage.queue.begin(what, unit.name, arrived, gradient))
        kept = max(min(len(gradient), unit.count - start), 0)
        self.storage.queue.wait(unit.name, self.storage.queue.call(
            "keep", unit.name, partial(self.rule.delay, state[DELAYED][:kept], arrived[:kept], factor)))

    def differences(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError("delayed updates arrive as weights")

    apply = differences
