"""How Stage III obtains full weights of a unit: when it uses them, ahead of time, or once for forward and backward.

What it gathers from are the shards of all ranks or, when weights are used again, a second copy nearby.
"""

from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np

from zerosim.allocation import Array
from zerosim.comm import Communicator
from zerosim.models.units import Model, Unit
from zerosim.sharding import Mesh, owned, split
from zerosim.stages.beside import Beside, Coming
from zerosim.stages.replica import Replica


class Fill(Protocol):
    """How a full buffer gets a unit's weights."""

    def begin(self, replica: Replica, unit: Unit) -> None:
        """Let what this rank brings come already; a call of `fill` follows."""

    def fill(self, replica: Replica, unit: Unit, room: list[Array], comm: Communicator) -> Array:
        """The one buffer in `room`, with all of a unit's weights; the list is emptied: nothing else holds it."""


class Filled:
    """Gathers the shards of all ranks. A shard in another dtype is cast before it travels."""

    def begin(self, replica: Replica, unit: Unit) -> None:
        replica.shards.begin(unit)

    def fill(self, replica: Replica, unit: Unit, room: list[Array], comm: Communicator) -> Array:
        full = room.pop()
        replica.own(full)[:] = replica.shards.take(unit)
        within = replica.mesh.within(comm)
        replica.collectives.all_gather(unit.name, within, split(full, within.size))
        return full


class WireFormat(Protocol):
    """How numbers travel in fewer bits: see `numerics.wires`."""

    def encoded_bytes(self, count: int) -> int: ...
    def encode(self, x: Array, out: Array) -> None: ...
    def decode(self, coded: Array, out: Array) -> None: ...


@dataclass(frozen=True)
class Quantized:
    """Fills weights from quantised shards, each in blocks of its own: qwZ of ZeRO++ (Wang et al., 2023).

    Every rank decodes all shards, its own too, so that all compute with the same numbers.
    """

    wire: WireFormat

    def begin(self, replica: Replica, unit: Unit) -> None:
        replica.shards.begin(unit)

    def fill(self, replica: Replica, unit: Unit, room: list[Array], comm: Communicator) -> Array:
        full, within = room.pop(), replica.mesh.within(comm)
        shard = replica.shards.take(unit)
        encoded_bytes = within.size * self.wire.encoded_bytes(len(shard))
        coded = split(replica.allocate(encoded_bytes, np.uint8, kind="buffers", owner=unit.name), within.size)
        self.wire.encode(shard, coded[replica.mesh.place])
        del shard
        replica.collectives.all_gather(unit.name, within, coded)
        for message, chunk in zip(coded, split(full, within.size), strict=True):
            self.wire.decode(message, chunk)
        return full


class SecondCopy:
    """Fills weights from all ranks once in a micro-batch; later uses gather a second copy, cut over fewer neighbours.

    With one host's ranks for neighbours nothing passes between hosts in backward: hpZ of ZeRO++ (Wang et al., 2023).
    """

    def __init__(self, ranks: int, fill: Fill) -> None:
        self._ranks = ranks
        self._first = fill
        self._copies: dict[Unit, Array] = {}
        self._uses = Counter[Unit]()
        """The segments to come in this micro-batch, for which the copy is that of this step's weights."""

    def begin(self, replica: Replica, unit: Unit) -> None:
        if not self._uses[unit]:
            self._first.begin(replica, unit)

    def fill(self, replica: Replica, unit: Unit, room: list[Array], comm: Communicator) -> Array:
        mesh = replace(replica.mesh, group=self._ranks)
        if not self._uses[unit]:
            full = self._first.fill(replica, unit, room, comm)
            self._uses[unit] = later_uses(replica.model, unit)
            if self._uses[unit]:
                self._copy(replica, unit, mesh)[:] = split(full, mesh.group)[mesh.place]
            return full
        self._uses[unit] -= 1
        full = room.pop()
        split(full, mesh.group)[mesh.place][:] = self._copies[unit]
        within = mesh.within(comm)
        replica.collectives.all_gather(unit.name, within, split(full, within.size))
        return full

    def _copy(self, replica: Replica, unit: Unit, mesh: Mesh) -> Array:
        """Room for this rank's part of a unit's copy; the first time, for all units."""
        for each in replica.units if not self._copies else ():
            if later_uses(replica.model, each):
                length, dtype = owned(each.count, mesh).length, replica.param_dtype
                self._copies[each] = replica.allocate(length, dtype, kind="parameters", owner=each.name)
        return self._copies[unit]


def later_uses(model: Model, unit: Unit) -> int:
    """How often a micro-batch uses a unit's weights again, after the first time."""
    return model.forward_units.count(unit) + model.backward_units.count(unit) - 1


def gathered(replica: Replica, unit: Unit, fill: Fill) -> Array:
    """A fresh full buffer with a unit's weights."""
    return fill.fill(replica, unit, [replica.full(unit, "parameters")], replica.comm)


class WhenUsed:
    """For each use; weights are gone as soon as the caller lets go of them."""

    def __init__(self, fill: Fill) -> None:
        self._fill = fill

    def gather(self, replica: Replica, unit: Unit) -> Array:
        return gathered(replica, unit, self._fill)

    def prefetch(self, replica: Replica, unit: Unit | None) -> None:
        """Nothing comes from other ranks before it is used."""
        if unit is not None:
            self._fill.begin(replica, unit)

    def reshard(self, replica: Replica, unit: Unit, full: Array) -> None:
        """Nothing keeps them from being released."""


class KeptUntilBackward:
    """In forward, and kept until backward asks for them: PyTorch's `reshard_after_forward=False`."""

    def __init__(self, fill: Fill) -> None:
        self._fill = fill
        self._kept: dict[Unit, Array] = {}
        self._in_use: Unit | None = None

    def gather(self, replica: Replica, unit: Unit) -> Array:
        self._in_use = unit
        return self._kept.pop(unit) if unit in self._kept else gathered(replica, unit, self._fill)

    def prefetch(self, replica: Replica, unit: Unit | None) -> None:
        """Nothing comes from other ranks before it is used."""
        if unit is not None and unit not in self._kept and unit is not self._in_use:
            self._fill.begin(replica, unit)

    def reshard(self, replica: Replica, unit: Unit, full: Array) -> None:
        if unit in replica.backward_units:
            self._kept[unit] = full


class Prefetched:
    """While the caller computes with the unit before; there is room for two full units from then on."""

    def __init__(self, beside: Beside, fill: Fill) -> None:
        self._beside = beside
        self._fill = fill
        self._coming: dict[Unit, Coming] = {}

    def gather(self, replica: Replica, unit: Unit) -> Array:
        if unit not in self._coming:
            self.prefetch(replica, unit)
        return self._beside.wait(unit, self._coming.pop(unit))

    def prefetch(self, replica: Replica, unit: Unit | None) -> None:
        if unit is not None:
            self._fill.begin(replica, unit)
            self._coming[unit] = self._beside.begin(
                partial(self._fill.fill, replica, unit, [replica.full(unit, "parameters")]))

    def reshard(self, replica: Replica, unit: Unit, full: Array) -> None:
        """Nothing keeps them from being released."""
