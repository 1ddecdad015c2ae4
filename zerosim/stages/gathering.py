"""How Stage III comes by a unit's full weights: when it uses them, ahead of time, or once for forward and backward."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from zerosim.allocation import Array
from zerosim.comm import Communicator
from zerosim.models.units import Unit
from zerosim.sharding import split
from zerosim.stages.replica import Replica


def gathered(replica: Replica, unit: Unit, comm: Communicator) -> Array:
    """All-gather a unit's weights into a fresh full buffer."""
    full = replica.full(unit, "parameters")
    replica.own(full)[:] = replica.state.weights[unit]
    replica.collectives.all_gather(unit.name, comm, split(full, comm.size))
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
    """While the caller computes with the unit before, so that two units are full at a time.

    `comm` must carry nothing else: under MPI it is a second channel, served by one thread, beside the caller's. Without
    one everything happens in turn, on the replica's own communicator, to the same bits.
    """

    def __init__(self, comm: Communicator | None = None) -> None:
        self._comm = comm
        self._thread = ThreadPoolExecutor(1) if comm is not None else None
        self._coming: dict[Unit, Callable[[], Array]] = {}

    def gather(self, replica: Replica, unit: Unit) -> Array:
        if unit in self._coming:
            return self._coming.pop(unit)()
        return gathered(replica, unit, self._comm or replica.comm)

    def prefetch(self, replica: Replica, unit: Unit | None) -> None:
        if unit is None:
            return
        if self._comm is not None and self._thread is not None:
            coming = [self._thread.submit(gathered, replica, unit, self._comm)]
            self._coming[unit] = lambda: coming.pop().result()
        else:
            self._coming[unit] = [gathered(replica, unit, replica.comm)].pop

    def reshard(self, replica: Replica, unit: Unit, full: Array) -> None:
        """Nothing keeps them from being released."""
