"""The training state of a rank, all that it keeps between steps and that a checkpoint saves, and its memory.

    device    memory for computation, to which a memory limit applies
    host      the memory of the CPU, which can update there
    carry     copies an array from one to the other, while the step waits

Layouts are stored beside the arrays: a length cannot distinguish a full buffer from a shard at N = 1 or in groups.

ZeRO-Offload (Ren et al., 2021) keeps optimizer state and reduced gradients on the host and updates there. States are
arrays in both, so comparisons, checkpoints and resharding read them alike; but the device computes with nothing on the
host, so what it uses is copied to an array that the ledger counts.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from zerosim.core.allocation import Allocator, Array, Kind, Tier, allocate_on_host
from zerosim.core.sharding import Layout, Mesh, full, owned
from zerosim.models.units import Unit
from zerosim.stages.scaling import Scaling

WEIGHTS, GRADIENT, ACCUMULATED = "weights", "gradient", "accumulated gradient"
GRADIENTS = GRADIENT, ACCUMULATED

Carry = Callable[[str, str, Array, Array], None]
"""`carry(what, owner, into, source)` fills `into` from `source`, in the other memory."""


def carried(what: str, owner: str, into: Array, source: Array) -> None:
    """A `Carry` that nothing observes."""
    into[...] = source


@dataclass(frozen=True)
class Placement:
    """Where a rank has each kind of model state: its shard by `mesh` or all of it, on the device or on the host."""

    mesh: Mesh
    sharded: tuple[Kind, ...] = ()
    """The kinds of which a rank keeps a shard; others are kept in full."""
    on_host: tuple[Kind, ...] = ()
    secondary: Mesh | None = None
    """The mesh of a second copy of gathered weights, if there is one."""

    def of_rank(self, rank: Any) -> "Placement":
        """The placement of the same states on another rank."""
        return replace(self, mesh=replace(self.mesh, rank=rank),
                       secondary=self.secondary and replace(self.secondary, rank=rank))

    def tier(self, kind: Kind) -> Tier:
        return "host" if kind in self.on_host else "device"

    def of(self, unit: Unit, kind: Kind) -> Layout:
        """The layout of this rank's buffer of a unit."""
        return self.shard(unit) if kind in self.sharded else self.full(unit)

    def full(self, unit: Unit) -> Layout:
        return full(unit.count, self.mesh.size)

    def shard(self, unit: Unit) -> Layout:
        return owned(unit.count, self.mesh)


@dataclass
class TrainingState:
    """Flat buffers for each unit, where `placement` says; frozen units have weights only.

    The optimizer reads `accumulated` instead of `gradients` if gradients are accumulated in float32.
    """

    placement: Placement
    scaling: Scaling
    weights: dict[Unit, Array] = field(default_factory=dict)
    gradients: dict[Unit, Array] = field(default_factory=dict)
    accumulated: dict[Unit, Array] = field(default_factory=dict)
    gradient_layouts: dict[Unit, Layout] = field(default_factory=dict)
    """The layouts of `gradients` and `accumulated`, recorded by the verbs that keep them."""
    optimizer: dict[Unit, dict[str, Array]] = field(default_factory=dict)
    step: int = 0
    updates: int = 0
    """Steps that were not skipped."""

    def states_of(self, unit: Unit) -> Iterator[tuple[str, Layout, Array]]:
        """The kept states of a unit: the name of each, its layout, and its buffer."""
        yield WEIGHTS, self.placement.of(unit, "parameters"), self.weights[unit]
        for slot, buffer in self.optimizer.get(unit, {}).items():
            yield slot, self.placement.of(unit, "optimizer"), buffer
        for what, kept in zip(GRADIENTS, (self.gradients, self.accumulated), strict=True):
            if unit in kept:
                yield what, self.gradient_layouts[unit], kept[unit]


@dataclass(frozen=True)
class HostMemory:
    """The memory of the host, and the way to it and back."""

    allocate: Allocator = allocate_on_host
    carry: Carry = carried


HOST = HostMemory()


@dataclass(frozen=True)
class Storage:
    """The memory of each kind of model state."""

    placement: Placement
    device: Allocator
    host: HostMemory

    def allocator(self, kind: Kind) -> Allocator:
        """The allocator of the states of a kind."""
        return self.host.allocate if kind in self.placement.on_host else self.device

    def keep(self, owner: str, array: Array, kind: Kind) -> Array:
        """A copy of `array`, which is on the device, in the memory of its kind."""
        copy = self.allocator(kind)(len(array), array.dtype, kind=kind, owner=owner)
        self.fill(owner, copy, array, kind, "device", self.placement.tier(kind))
        return copy

    def fill(self, owner: str, into: Array, source: Array, kind: Kind, came_from: Tier, to: Tier) -> None:
        """Copy another array of a kind, and report the copy if it goes from one memory to the other."""
        if into is source:
            return
        if came_from == to:
            into[:] = source
        else:
            self.host.carry(f"{kind}, {came_from} to {to}", owner, into, source)

    def brought(self, owner: str, array: Array, kind: Kind, to: Tier, *, read: bool = True) -> Array:
        """An array of a kind in the memory `to`: itself, or a copy, whose numbers are needed if it is `read`."""
        tier = self.placement.tier(kind)
        if tier == to:
            return array
        allocate = self.device if to == "device" else self.host.allocate
        copy = allocate(len(array), array.dtype, kind=kind, owner=owner)
        if read:
            self.fill(owner, copy, array, kind, tier, to)
        return copy
