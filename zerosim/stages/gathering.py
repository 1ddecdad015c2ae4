"""How Stage III obtains full weights of a unit: when it uses them, ahead of time, or once for forward and backward."""

from functools import partial

from zerosim.allocation import Array
from zerosim.comm import Communicator
from zerosim.models.units import Unit
from zerosim.sharding import split
from zerosim.stages.beside import Beside, Coming
from zerosim.stages.replica import Replica


def gathered(replica: Replica, unit: Unit, comm: Communicator) -> Array:
    """All-gather a unit's weights into a fresh full buffer."""
    return filled(replica, unit, [replica.full(unit, "parameters")], comm)


def filled(replica: Replica, unit: Unit, room: list[Array], comm: Communicator) -> Array:
    """The one buffer in `room`, with all of a unit's weights; the list is emptied, so that nothing else holds it."""
    full = room.pop()
    replica.own(full)[:] = replica.state.weights[unit]
    within = replica.mesh.within(comm)
    replica.collectives.all_gather(unit.name, within, split(full, within.size))
    return full


class WhenUsed:
    """For each use; weights are gone as soon as the caller lets go of them."""

    def gather(self, replica: Replica, unit: Unit) -> Array:
        return gathered(replica, unit, replica.comm)

    def prefetch(self, replica: Replica, unit: Unit | None) -> None:
        """Nothing comes before it is used."""

    def reshard(self, replica: Replica, unit: Unit, full: Array) -> None:
        """Nothing keeps them from being released."""


class KeptUntilBackward:
    """In forward, and kept until backward asks for them: PyTorch's `reshard_after_forward=False`."""

    def __init__(self) -> None:
        self._kept: dict[Unit, Array] = {}

    def gather(self, replica: Replica, unit: Unit) -> Array:
        return self._kept.pop(unit) if unit in self._kept else gathered(replica, unit, replica.comm)

    def prefetch(self, replica: Replica, unit: Unit | None) -> None:
        """Nothing comes before it is used."""

    def reshard(self, replica: Replica, unit: Unit, full: Array) -> None:
        if unit in replica.backward_units:
            self._kept[unit] = full


class Prefetched:
    """While the caller computes with the unit before; there is room for two full units from then on."""

    def __init__(self, beside: Beside) -> None:
        self._beside = beside
        self._coming: dict[Unit, Coming] = {}

    def gather(self, replica: Replica, unit: Unit) -> Array:
        if unit not in self._coming:
            self.prefetch(replica, unit)
        return self._beside.wait(unit, self._coming.pop(unit))

    def prefetch(self, replica: Replica, unit: Unit | None) -> None:
        if unit is not None:
            self._coming[unit] = self._beside.begin(
                partial(filled, replica, unit, [replica.full(unit, "parameters")]))

    def reshard(self, replica: Replica, unit: Unit, full: Array) -> None:
        """Nothing keeps them from being released."""
