"""The training state of one rank: what it has between steps, what the next step needs, and what a checkpoint saves.

Layouts are kept beside the arrays. A length cannot tell a full buffer from a shard at N = 1 or in groups.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from zerosim.allocation import Array, Kind
from zerosim.models.units import Unit
from zerosim.optim.scaling import Scaling
from zerosim.sharding import Layout, Mesh, full, owned
from zerosim.stages.feedback import Residuals

GRADIENT, ACCUMULATED = "gradient", "accumulated gradient"


@dataclass(frozen=True)
class Layouts:
    """The states of which this rank has a shard, the others in full; the mesh says what a shard is."""

    mesh: Mesh
    sharded: tuple[Kind, ...]

    def of(self, unit: Unit, kind: Kind) -> Layout:
        """The layout of what this rank keeps of a unit."""
        return self.shard(unit) if kind in self.sharded else self.full(unit)

    def full(self, unit: Unit) -> Layout:
        return full(unit.count, self.mesh.size)

    def shard(self, unit: Unit) -> Layout:
        return owned(unit.count, self.mesh)


@dataclass
class TrainingState:
    """Flat buffers for each unit, laid out as `layouts` says; frozen units have weights alone.

    `accumulated` is what the optimizer reads instead of `gradients` where these add up in float32.
    """

    layouts: Layouts
    scaling: Scaling
    weights: dict[Unit, Array] = field(default_factory=dict)
    gradients: dict[Unit, Array] = field(default_factory=dict)
    accumulated: dict[Unit, Array] = field(default_factory=dict)
    gradient_layouts: dict[Unit, Layout] = field(default_factory=dict)
    """The layouts of `gradients` and `accumulated`, as the verbs that keep them have noted."""
    optimizer: dict[Unit, dict[str, Array]] = field(default_factory=dict)
    residuals: Residuals = field(default_factory=Residuals)
    """What quantisation has lost of gradients, where that is fed back."""
    step: int = 0
    updates: int = 0
    """Steps that were not skipped."""

    def gradients_of(self, unit: Unit) -> Mapping[str, Array]:
        """What is kept of a unit's gradient, by the name that comparisons have for it."""
        found = {GRADIENT: self.gradients, ACCUMULATED: self.accumulated}
        return {name: held[unit] for name, held in found.items() if unit in held}

    def residuals_of(self, unit: Unit) -> Mapping[str, Array]:
        """This rank's residual of a unit, if it keeps one, by the name that comparisons and checkpoints have for it."""
        now = self.residuals.now
        return {residual_of(self.layouts.mesh.rank): now[unit]} if unit in now else {}


def residual_of(rank: int) -> str:
    """What comparisons and checkpoints call a rank's residual of a unit."""
    return f"residual of rank {rank}"
