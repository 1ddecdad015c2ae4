"""The groups of a rank's tape: collectives of its directions, which instruments observe by name."""

from collections.abc import Callable
from typing import Any

from zerosim.collectives import direct, ring
from zerosim.core.allocation import Array
from zerosim.core.comm import Communicator
from zerosim.core.sharding import Directions, split
from zerosim.observe.observed import Observed

WAYS = {"activation": 1, "gradient": -1}
"""What the ranks of a pipeline send, to the next rank or to the one before."""


class GroupOfRanks:
    """The group of a rank in a direction; its collectives are called `tensor_all_reduce` and so on."""

    def __init__(self, name: str, comm: Observed) -> None:
        self._name, self.comm = name, comm
        self.size, self.place = comm.size, comm.rank

    def _call(self, collective: Callable[..., None], *args: Any) -> None:
        self.comm.named(f"{self._name}_{collective.__name__}", collective)("tape", self.comm, *args)

    def all_reduce(self, flat: Array) -> None:
        self._call(ring.all_reduce, split(flat, self.size))

    def reduce_scatter(self, flat: Array) -> None:
        self._call(ring.reduce_scatter, split(flat, self.size))

    def all_gather(self, flat: Array) -> None:
        self._call(ring.all_gather, split(flat, self.size))

    def all_to_all(self, flat: Array) -> None:
        self._call(direct.all_to_all, split(flat.copy(), self.size), split(flat, self.size))

    def shift(self, flat: Array, by: int) -> None:
        self._call(shift, flat, by)


def shift(comm: Communicator, flat: Array, by: int) -> None:
    """Send each rank's array to the rank `by` places after it; nothing, if that is the rank itself."""
    if by % comm.size:
        comm.exchange(flat, to=(comm.rank + by) % comm.size, into=flat, source=(comm.rank - by) % comm.size)


class RanksOfPipeline(GroupOfRanks):
    """A rank's neighbours in a pipeline, and the rank at the other end."""

    def __init__(self, comm: Observed, directions: Directions) -> None:
        super().__init__("pipeline", comm.around(directions.along(comm, "pipeline")))
        self.add_over_ends = GroupOfRanks("ends", comm.around(directions.along(comm, "ends"))).all_reduce

    def send(self, what: str, array: Array) -> None:
        to = (self.place + WAYS[what]) % self.size
        self.comm.named(f"send_{what}", self.comm.send)("pipeline", array.reshape(-1), to=to)

    def recv(self, what: str, into: Array) -> None:
        source = (self.place - WAYS[what]) % self.size
        self.comm.named(f"recv_{what}", self.comm.recv)("pipeline", into=into.reshape(-1), source=source)


def groups_of(comm: Observed, directions: Directions) -> dict[str, GroupOfRanks]:
    """The groups of a rank of `comm`, by direction, joined ones too."""
    return {name: GroupOfRanks(name, comm.around(directions.along(comm, name))) for name in directions.groups}
