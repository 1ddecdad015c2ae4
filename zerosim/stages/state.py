"""The training state of one rank: all that it keeps between steps and that a checkpoint saves.

Layouts are stored beside the arrays. A length cannot distinguish a full buffer from a shard at N = 1 or in groups.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from zerosim.core.allocation import Array, Kind
from zerosim.core.sharding import Layout, Mesh, full, owned
from zerosim.models.units import Unit
from zerosim.stages.scaling import Scaling

GRADIENT, ACCUMULATED = "gradient", "accumulated gradient"


@dataclass(frozen=True)
class Layouts:
    """The states of which this rank keeps a shard, and the mesh that defines it; others are kept in full."""

    mesh: Mesh
    sharded: tuple[Kind, ...]

    def of(self, unit: Unit, kind: Kind) -> Layout:
        """The layout of this rank's buffer of a unit."""
        return self.shard(unit) if kind in self.sharded else self.full(unit)

    def full(self, unit: Unit) -> Layout:
        return full(unit.count, self.mesh.size)

    def shard(self, unit: Unit) -> Layout:
        return owned(unit.count, self.mesh)


@dataclass
class TrainingState:
    """Flat buffers for each unit, in the layouts of `layouts`; frozen units have weights only.

    The optimizer reads `accumulated` instead of `gradients` if gradients are accumulated in float32.
    """

    layouts: Layouts
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

    def gradients_of(self, unit: Unit) -> Mapping[str, Array]:
        """The kept gradients of a unit, by the names that comparisons use."""
        found = {GRADIENT: self.gradients, ACCUMULATED: self.accumulated}
        return {name: held[unit] for name, held in found.items() if unit in held}
