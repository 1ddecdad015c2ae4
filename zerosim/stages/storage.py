"""The memory of a rank's model states: the device's or, for kinds that a row offloads, the host's.

    device    memory for computation, to which a memory limit applies
    host      memory beside it, in which a CPU can update
    carry     copies an array from one to the other, while the step waits

ZeRO-Offload (Ren et al., 2021) keeps optimizer state and reduced gradients on the host and updates there. States are
arrays in both, so comparisons, checkpoints and resharding read them alike; but the device computes with nothing on the
host, so what it uses is copied to an array that the ledger counts.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from zerosim.core.allocation import Allocator, Array, Kind, Tier, allocate_on_host
from zerosim.core.precisions import Precision
from zerosim.models.units import Unit
from zerosim.stages.update import MASTER, WeightUpdates

Carry = Callable[[str, str, Array, Array], None]
"""`carry(what, owner, into, source)` fills `into` from `source`, in the other memory."""


def carried(what: str, owner: str, into: Array, source: Array) -> None:
    """A `Carry` that nothing observes."""
    into[...] = source


@dataclass(frozen=True)
class HostMemory:
    """The memory of the host, and the way to it and back."""

    allocate: Allocator = allocate_on_host
    carry: Carry = carried


HOST = HostMemory()


@dataclass(frozen=True)
class Storage:
    """The memory of each kind of model state."""

    on_host: Collection[Kind]
    device: Allocator
    host: HostMemory

    def tier(self, kind: Kind) -> Tier:
        return "host" if kind in self.on_host else "device"

    def room(self, kind: Kind) -> Allocator:
        """The allocator of the states of a kind."""
        return self.host.allocate if kind in self.on_host else self.device

    def keep(self, owner: str, array: Array, kind: Kind) -> Array:
        """A copy of `array`, which is on the device, in the memory of its kind."""
        copy = self.room(kind)(len(array), array.dtype, kind=kind, owner=owner)
        self.fill(owner, copy, array, kind, "device", self.tier(kind))
        return copy

    def fill(self, owner: str, into: Array, source: Array, kind: Kind, came_from: Tier, to: Tier) -> None:
        """Copy an array of a kind, and report the copy if it goes from one memory to the other."""
        if came_from == to:
            into[:] = source
        else:
            self.host.carry(f"{kind}, {came_from} to {to}", owner, into, source)

    def brought(self, owner: str, array: Array, kind: Kind, to: Tier, *, read: bool = True) -> Array:
        """An array of a kind in the memory `to`: itself, or a copy, whose numbers are needed if it is `read`."""
        tier = self.tier(kind)
        if tier == to:
            return array
        room = self.device if to == "device" else self.host.allocate
        copy = room(len(array), array.dtype, kind=kind, owner=owner)
        if read:
            self.fill(owner, copy, array, kind, tier, to)
        return copy

    def put_back(self, owner: str, home: Array, written: Array, kind: Kind, came_from: Tier) -> None:
        """Copy what was `written` in another memory to its `home`."""
        if written is not home:
            self.fill(owner, home, written, kind, came_from, self.tier(kind))


@dataclass(frozen=True)
class StoredUpdates:
    """An update rule on states of a storage; it runs where the optimizer state is, on the device or on the host."""

    rule: WeightUpdates
    storage: Storage

    @property
    def slots(self) -> tuple[str, ...]:
        return self.rule.slots

    @property
    def precision(self) -> Precision:
        return self.rule.precision

    def update(
        self, unit: Unit, start: int, weights: Array, gradient: Array, state: Mapping[str, Array], **about: Any
    ) -> None:
        """The rule's update; weights are read only if there is no master copy."""
        here, storage = self.storage.tier("optimizer"), self.storage
        near = storage.brought(unit.name, weights, "parameters", here, read=MASTER not in state)
        arrived = storage.brought(unit.name, gradient, "gradients", here)
        self.rule.update(unit, start, near, arrived, state, **about)
        storage.put_back(unit.name, weights, near, "parameters", here)

    def differences(
        self, unit: Unit, start: int, weights: Array, gradient: Array, state: Mapping[str, Array], *, out: Array,
        **about: Any,
    ) -> None:
        """The rule's differences in `out`, which is on the device."""
        here, storage = self.storage.tier("optimizer"), self.storage
        near = storage.brought(unit.name, weights, "parameters", here, read=MASTER not in state)
        arrived = storage.brought(unit.name, gradient, "gradients", here)
        found = storage.brought(unit.name, out, "buffers", here, read=False)
        self.rule.differences(unit, start, near, arrived, state, out=found, **about)
        storage.put_back(unit.name, out, found, "buffers", here)

    def apply(self, unit: Unit, start: int, weights: Array, differences: Array, *, step: int) -> None:
        """Apply differences on the device, where they arrive."""
        self.rule.apply(unit, start, weights, differences, step=step)
