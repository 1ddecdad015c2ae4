"""Three ways to publish updated weights; they give the same bits in float32 and differ in their traffic.

    weights      each rank updates its chunk of the weights, and the weights are all-gathered
    broadcasts   the same, but each owner broadcasts its chunk: N broadcasts instead of one all-gather
    updates      each rank computes the updates of its chunk, they are all-gathered, and every rank applies all of them

With 16-bit weights the third is a different computation: updates are rounded to 16 bits and subtracted from 16-bit
weights, while the others round the float32 master copy again.

An optimizer of whole matrices needs the differences of a whole unit: the ranks all-gather them too, one P more.
"""

from typing import Protocol

from zerosim.core.allocation import Array
from zerosim.core.sharding import split
from zerosim.models.units import Unit
from zerosim.stages.beside import Pending
from zerosim.stages.replica import Publishing, Replica


class GatheredWeights:
    """All-gathers weights."""

    def update(self, replica: Replica, unit: Unit, weights: Array) -> None:
        replica.optimizer_step(unit, weights)

    def publish(self, replica: Replica, unit: Unit, full: Array) -> None:
        replica.all_gather(unit, full)


class Broadcasts(GatheredWeights):
    """Broadcasts each chunk of the weights from its owner."""

    def publish(self, replica: Replica, unit: Unit, full: Array) -> None:
        within = replica.mesh.within(replica.comm)
        for root, chunk in enumerate(split(full, within.size)):
            replica.collectives.broadcast(unit.name, within, chunk, root)


class Updates:
    """All-gathers updates and applies all of them on every rank."""

    def __init__(self) -> None:
        self._pending: dict[Unit, Array] = {}

    def update(self, replica: Replica, unit: Unit, weights: Array) -> None:
        pending = replica.full(unit, "buffers")
        replica.optimizer_differences(unit, weights, out=replica.own(pending))
        self._pending[unit] = pending

    def publish(self, replica: Replica, unit: Unit, full: Array) -> None:
        updates = replica.all_gather(unit, self._pending.pop(unit))
        assert updates is not None
        assert not isinstance(updates, Pending)
        replica.rule.apply(unit, 0, full, updates, step=replica.state.step)


class RewritesMatrices(Protocol):
    """An update rule with a function of whole matrices."""

    def of_matrices(self, unit: Unit, differences: Array, *, step: int) -> None: ...


class OfMatrices(GatheredWeights):
    """All-gathers the differences of a unit, rewrites those of its matrices, and applies this rank's part."""

    def __init__(self, rule: RewritesMatrices) -> None:
        self._rule = rule

    def update(self, replica: Replica, unit: Unit, weights: Array) -> None:
        layouts, whole = replica.state.layouts, replica.full(unit, "buffers")
        layout = layouts.of(unit, "optimizer")
        mine = layouts.full(unit).part(whole, layout)
        replica.optimizer_differences(unit, weights, out=mine)
        if layout.length < len(whole):
            replica.all_gather(unit, whole)
        self._rule.of_matrices(unit, whole, step=replica.state.step)
        replica.rule.apply(unit, layout.start, weights, mine, step=replica.state.step)


PUBLISHING: dict[str, type[Publishing]] = {"weights": GatheredWeights, "updates": Updates, "broadcasts": Broadcasts}
