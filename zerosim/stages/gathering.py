"""How Stage III comes by a unit's full weights: anew for each use, once for forward and backward, or ahead of time."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from zerosim.allocation import Array
from zerosim.comm import Communicator
from zerosim.model import Unit
from zerosim.sharding import split
from zerosim.stages.replica import Replica


def gathered(replica: Replica, unit: Unit, comm: Communicator) -> Array:
    """All-gather a unit's weights into a fresh full buffer."""
    full = replica.full(unit, "parameters")
    replica.own(full)[:] = replica.weights[unit]
    replica.collectives.all_gather(comm, split(full, comm.size))
    return full


class Anew:
    """For each use; weights are gone as soon as the caller lets go of them."""

    def gather(self, replica: Replica, unit: Unit) -> Array:
        return gathered(replica, unit, replica.comm)


class Once:
    """In forward, and kept until backward has asked for them: PyTorch's `reshard_after_forward=False`."""

    def __init__(self) -> None:
        self._kept: dict[Unit, Array] = {}
        self._to_come: deque[Unit] = deque()

    def gather(self, replica: Replica, unit: Unit) -> Array:
        self._to_come = self._to_come or uses(replica)
        self._to_come.popleft()
        if unit not in self._kept:
            self._kept[unit] = gathered(replica, unit, replica.comm)
        return self._kept[unit] if unit in self._to_come else self._kept.pop(unit)


class Ahead:
    """The next use while the caller computes with this one, so that two units are full at a time.

    `comm` must carry nothing else: under MPI it is a second channel, served by one thread, beside the caller's. Without
    one everything happens in turn, on the replica's own communicator, to the same bits.
    """

    def __init__(self, comm: Communicator | None = None) -> None:
        self._comm = comm
        self._thread = ThreadPoolExecutor(1) if comm is not None else None
        self._to_come: deque[Unit] = deque()
        self._next: Callable[[], Array] | None = None

    def gather(self, replica: Replica, unit: Unit) -> Array:
        if self._next is None:
            self._to_come = uses(replica)
            self._next = self._start(replica)
        assert self._next is not None
        full = self._next()
        self._next = self._start(replica)
        return full

    def _start(self, replica: Replica) -> Callable[[], Array] | None:
        if not self._to_come:
            return None
        unit = self._to_come.popleft()
        if self._comm is not None and self._thread is not None:
            coming = [self._thread.submit(gathered, replica, unit, self._comm)]
            return lambda: coming.pop().result()
        return [gathered(replica, unit, replica.comm)].pop


def uses(replica: Replica) -> deque[Unit]:
    """The units in the order in which a part of a batch asks for their weights: forward, then backward."""
    return deque([*replica.units, *replica.backward_units])
