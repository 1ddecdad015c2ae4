"""How weights reach ranks that do not own them: gathered in Stage III, published by the updates of Stages I and II.

Stage III gathers full weights at each use, ahead of time, or once for forward and backward. The source is the shards of
all ranks or, for a second use, a second copy on fewer neighbours.

Updated weights are published in three ways, which have the same bits in float32 and differ in their traffic:

    weights      each rank updates its chunk of the weights, and the weights are all-gathered
    broadcasts   the same, but each owner broadcasts its chunk: N broadcasts instead of one all-gather
    updates      each rank computes the updates of its chunk, they are all-gathered, and every rank applies all of them

With 16-bit weights the third is a different computation: updates are rounded to 16 bits and subtracted from 16-bit
weights, while the others round the float32 master copy again.

An optimizer of whole matrices needs the differences of a whole unit: the ranks all-gather them too, one P more.
"""

from collections import Counter
from dataclasses import dataclass
from functools import partial

import numpy as np

from zerosim.collectives.narrow import WireFormat
from zerosim.core.allocation import Array
from zerosim.core.comm import Communicator
from zerosim.core.sharding import owned, split
from zerosim.models.units import Model, Unit
from zerosim.stages.replica import Fill, Gathering, Publishing, Replica
from zerosim.stages.second_channel import Pending, SecondChannel
from zerosim.stages.storage import Placement


def filled(replica: Replica, unit: Unit, empty: list[Array], comm: Communicator) -> Array:
    """A `Fill` that all-gathers the shards of all ranks. A shard in a different dtype is cast before it is sent."""
    full, storage = empty.pop(), replica.storage
    shard = replica.state.weights[unit]
    here = storage.placement.tier("parameters")
    storage.fill(unit.name, replica.own(full), shard, "parameters", here, "device")
    within = replica.mesh.within(comm)
    replica.collectives.all_gather(unit.name, within, split(full, within.size))
    return full


@dataclass(frozen=True)
class Quantized:
    """A `Fill` that all-gathers quantised shards, each in its own blocks: qwZ of ZeRO++ (Wang et al., 2023).

    Every rank decodes all shards, its own included, so that all ranks compute with the same numbers.
    """

    wire: WireFormat

    def __call__(self, replica: Replica, unit: Unit, empty: list[Array], comm: Communicator) -> Array:
        full, within = empty.pop(), replica.mesh.within(comm)
        shard = replica.storage.brought(unit.name, replica.state.weights[unit], "parameters", "device")
        encoded_bytes = within.size * self.wire.encoded_bytes(len(shard))
        coded = split(replica.allocate(encoded_bytes, np.uint8, kind="buffers", owner=unit.name), within.size)
        self.wire.encode(shard, coded[replica.mesh.place])
        del shard
        replica.collectives.all_gather(unit.name, within, coded)
        for message, chunk in zip(coded, split(full, within.size), strict=True):
            self.wire.decode(message, chunk)
        return full


class SecondCopy:
    """A `Fill` that gathers from all ranks once per micro-batch, and later from a second copy on fewer neighbours.

    If the neighbours are the ranks of one host, backward sends nothing between hosts: hpZ of ZeRO++ (Wang et al.,
    2023).
    """

    def __init__(self, fill: Fill) -> None:
        self._first = fill
        self._copies: dict[Unit, Array] = {}
        """This rank's part of the second copies, which the first gathering allocates for all units."""
        self._uses = Counter[Unit]()
        """The remaining uses of each unit in this micro-batch, for which its second copy is valid."""

    def __call__(self, replica: Replica, unit: Unit, empty: list[Array], comm: Communicator) -> Array:
        mesh = replica.state.placement.secondary
        assert mesh is not None
        if not self._uses[unit]:
            full = self._first(replica, unit, empty, comm)
            self._uses[unit] = later_uses(replica.model, unit)
            for reread in replica.units if self._uses[unit] and not self._copies else ():
                if later_uses(replica.model, reread):
                    length, dtype = owned(reread.count, mesh).length, replica.arithmetic.compute
                    self._copies[reread] = replica.allocate(length, dtype, kind="parameters", owner=reread.name)
            if self._uses[unit]:
                self._copies[unit][:] = split(full, mesh.group)[mesh.place]
            return full
        self._uses[unit] -= 1
        full = empty.pop()
        split(full, mesh.group)[mesh.place][:] = self._copies[unit]
        within = mesh.within(comm)
        replica.collectives.all_gather(unit.name, within, split(full, within.size))
        return full


def later_uses(model: Model, unit: Unit) -> int:
    """The number of uses of a unit's weights in a micro-batch after the first."""
    return model.forward_units.count(unit) + model.backward_units.count(unit) - 1


class KeptUntilBackward(Gathering):
    """Gathers in forward and keeps the weights until backward: PyTorch's `reshard_after_forward=False`."""

    def __init__(self, fill: Fill) -> None:
        super().__init__(fill)
        self._kept: dict[Unit, Array] = {}

    def gather(self, replica: Replica, unit: Unit) -> Array:
        return self._kept.pop(unit) if unit in self._kept else super().gather(replica, unit)

    def reshard(self, replica: Replica, unit: Unit, full: Array) -> None:
        if unit in replica.backward_units:
            self._kept[unit] = full


class Prefetched(Gathering):
    """Gathers while the caller computes with the previous unit; two full units are then in memory."""

    def __init__(self, second_channel: SecondChannel, fill: Fill) -> None:
        super().__init__(fill)
        self._second_channel = second_channel
        self._pending: dict[Unit, Pending] = {}

    def gather(self, replica: Replica, unit: Unit) -> Array:
        if unit not in self._pending:
            self.prefetch(replica, unit)
        return self._second_channel.wait(unit, self._pending.pop(unit))

    def prefetch(self, replica: Replica, unit: Unit | None) -> None:
        if unit is not None:
            self._pending[unit] = self._second_channel.begin(
                partial(self._fill, replica, unit, [replica.full(unit, "parameters")]))


class Broadcasts(Publishing):
    """Broadcasts each chunk of the weights from its owner."""

    def publish(self, replica: Replica, unit: Unit, full: Array) -> None:
        within = replica.mesh.within(replica.comm)
        for root, chunk in enumerate(split(full, within.size)):
            replica.collectives.broadcast(unit.name, within, chunk, root)


class Updates(Publishing):
    """All-gathers updates and applies all of them on every rank."""

    def __init__(self) -> None:
        self._pending: dict[Unit, Array] = {}

    def update(self, replica: Replica, unit: Unit, weights: Array) -> None:
        pending = replica.full(unit, "buffers")
        replica.optimizer_step(unit, weights, out=replica.own(pending))
        self._pending[unit] = pending

    def publish(self, replica: Replica, unit: Unit, full: Array) -> None:
        updates = replica.all_gather(unit, self._pending.pop(unit))
        assert updates is not None
        assert not isinstance(updates, Pending)
        replica.rule.apply(unit, 0, full, updates, step=replica.state.step)


class OfMatrices(Publishing):
    """All-gathers the differences of a unit, rewrites those of its matrices, and applies this rank's part."""

    def update(self, replica: Replica, unit: Unit, weights: Array) -> None:
        placement, whole = replica.state.placement, replica.full(unit, "buffers")
        layout = placement.of(unit, "optimizer")
        own_weights = placement.full(unit).part(whole, layout)
        replica.optimizer_step(unit, weights, out=own_weights)
        if layout.length < len(whole):
            replica.all_gather(unit, whole)
        replica.rule.of_matrices(unit, whole, step=replica.state.step)
        replica.rule.apply(unit, layout.start, weights, own_weights, step=replica.state.step)


PUBLISHING: dict[str, type[Publishing]] = {"weights": Publishing, "updates": Updates, "broadcasts": Broadcasts}


def gathering(
    placement: Placement, second_channel: SecondChannel | None, wire: WireFormat | None, *, reshards: bool
) -> Gathering:
    """The `Gathering` of Stage III: ahead of use, if there is a second channel; `wire` quantises weights.

    Weights stay allocated from forward to backward unless the stage `reshards` them.
    """
    fill: Fill = filled if wire is None else Quantized(wire)
    if placement.secondary:
        fill = SecondCopy(fill)
    if second_channel is not None:
        return Prefetched(second_channel, fill)
    return Gathering(fill) if reshards else KeptUntilBackward(fill)
