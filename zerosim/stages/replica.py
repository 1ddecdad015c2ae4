"""What one rank trains with, the model states that its stage keeps there, and the verbs that stages are written in.

A flat buffer is full (one unit, padded, as `sharding` cuts it) or a shard (this rank's chunk of it). Which of the two
stands in `weights`, `gradients` and `optimizer` between steps is all that tells the stages apart; the files beside
this one say it. A frozen unit has weights and nothing else: the verbs for gradients and updates pass over it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from zerosim.allocation import Allocator, Array, Kind
from zerosim.autograd.tape import Tape, Total
from zerosim.comm import Communicator, Payload
from zerosim.model import Unit
from zerosim.scaling import Scaling, square_sum
from zerosim.sharding import bounds, padded, split
from zerosim.updating import MASTER, Rule

Initial = Callable[[Unit], Array]
"""A unit's float32 weights before the first step, unpadded."""


@dataclass(frozen=True)
class Batch:
    """This rank's micro-batches of step `step` (the first is 1), and the samples in the batch of all ranks."""

    step: int
    inputs: list[Array]
    targets: list[Array]
    samples: int


@dataclass(frozen=True)
class Collectives:
    """What a replica calls over its communicator: for gradients, for weights, for norms."""

    reduce_scatter: Callable[[Communicator, Total, Callable[[Array], Array]], Array]
    all_gather: Callable[[Communicator, Sequence[Payload]], None]
    gather_norms: Callable[[Communicator, Sequence[Payload]], None]
    broadcast: Callable[[Communicator, Payload, int], None]


@dataclass(frozen=True)
class Manner:
    """The variants a scenario may choose among, for the stages to which they apply."""

    wire: npt.DTypeLike = np.float32
    """In which dtype gradients travel, and are added over ranks."""
    accumulates_in_float32: bool = False
    reduces_to_all: bool = False
    """Whether all ranks get the sum of all gradients, as by an all-reduce."""
    part_by_part: bool = False
    """Whether each micro-batch is reduced by itself."""


class Publication(Protocol):
    """How updated weights reach the ranks that do not own them."""

    def update(self, replica: "Replica", unit: Unit, weights: Array) -> None: ...
    def publish(self, replica: "Replica", unit: Unit, full: Array) -> None: ...


class Gathering(Protocol):
    """How a stage comes by the full weights of a unit of which it keeps a shard."""

    def gather(self, replica: "Replica", unit: Unit) -> Array: ...


@dataclass(eq=False)
class Replica:
    """One rank's tools, and its model states, a buffer for each unit."""

    comm: Communicator
    units: Sequence[Unit]
    loss_name: str
    tape: Tape
    rule: Rule
    scaling: Scaling
    manner: Manner
    collectives: Collectives
    publication: Publication
    gathering: Gathering
    allocate: Allocator

    weights: dict[Unit, Array] = field(default_factory=dict)
    gradients: dict[Unit, Array] = field(default_factory=dict)
    accumulated: dict[Unit, Array] = field(default_factory=dict)
    optimizer: dict[Unit, dict[str, Array]] = field(default_factory=dict)
    step: int = 0
    updates: int = 0
    factor: float | None = None

    @property
    def backward_units(self) -> Sequence[Unit]:
        """The units that backward goes through: last first, down to the lowest that is trained."""
        trained = [index for index, unit in enumerate(self.units) if not unit.frozen]
        return list(reversed(self.units[trained[0] :])) if trained else []

    def full(self, unit: Unit, kind: Kind, dtype: npt.DTypeLike | None = None) -> Array:
        """An uninitialised full buffer, in the precision of the weights if nothing else is said."""
        count = padded(unit.count, self.comm.size)
        return self.allocate(count, dtype or self.rule.precision.weights, kind=kind, owner=unit.name)

    def own(self, full: Array) -> Array:
        """This rank's chunk of a full buffer: a view."""
        own: Array = split(full, self.comm.size)[self.comm.rank]
        return own

    def shard(self, unit: Unit, full: Array, kind: Kind) -> Array:
        """This rank's chunk of a full buffer: a copy, which does not keep the rest alive."""
        own = self.own(full)
        return self._copied(unit.name, own, own.dtype, kind)

    def filled(self, unit: Unit, values: Array) -> Array:
        """A full buffer of weights that holds `values`; its padding is zero."""
        full = self.full(unit, "parameters")
        full[: unit.count] = values
        full[unit.count :] = 0
        return full

    def begin_state(self, unit: Unit, values: Array, weights: Array) -> None:
        """The optimizer state that belongs to `weights`, full or a shard: zeros, and a master copy of `values`."""
        if unit.frozen:
            return
        self.optimizer[unit] = {}
        for slot in self.rule.slots:
            state = self.allocate(len(weights), np.float32, kind="optimizer", owner=unit.name)
            state[:] = 0
            if slot == MASTER:
                mine = values[self._start(unit, weights) :][: len(weights)]
                state[: len(mine)] = mine
            self.optimizer[unit][slot] = state

    def parts(self, batch: Batch) -> Iterator[Batch]:
        """What goes forward and backward at a time: all of this rank's micro-batches, or each by itself."""
        self.begin(batch)
        parts = [batch]
        if self.manner.part_by_part:
            pairs = zip(batch.inputs, batch.targets, strict=True)
            parts = [Batch(batch.step, [x], [y], batch.samples) for x, y in pairs]
        yield from parts

    def begin(self, batch: Batch) -> None:
        """Let go of the last step's gradients."""
        self.gradients.clear()
        self.accumulated.clear()
        self.step = batch.step
        self.tape.loss_scale = self.scaling.loss_scale

    def gather(self, unit: Unit) -> Array:
        """The full weights of a unit, for as long as the caller holds them."""
        return self.gathering.gather(self, unit)

    def reduce_scatter(self, gradient: Total) -> Array | None:
        """Add the ranks' gradients of a unit: in the full buffer returned, this rank's chunk is the sum."""
        if gradient is None:
            return None
        return self.collectives.reduce_scatter(self.comm, gradient, self._rounded_for_the_wire)

    def reduce(self, gradient: Total) -> Array | None:
        """Reduce-scatter or, where the scenario says so, all-reduce: then all of the full buffer is the sum."""
        full = self.reduce_scatter(gradient)
        return self.all_gather(full) if self.manner.reduces_to_all else full

    def all_gather(self, full: Array | None) -> Array | None:
        """Fill a full buffer from the chunk that each rank owns of it."""
        if full is not None:
            self.collectives.all_gather(self.comm, split(full, self.comm.size))
        return full

    def keep(self, unit: Unit, gradient: Array | None) -> None:
        """Keep a unit's gradient, added to what earlier parts of the batch left."""
        if gradient is None:
            return
        if self.manner.accumulates_in_float32:
            wide = self._copied(unit.name, gradient, np.float32, "gradients")
            self._accumulate(self.accumulated, unit, wide)
        narrow = self.rule.precision.weights
        if gradient.dtype != narrow:
            gradient = self._copied(unit.name, gradient, narrow, "gradients")
        self._accumulate(self.gradients, unit, gradient)

    def keep_shard(self, unit: Unit, full: Array | None) -> None:
        """As `keep`, but only this rank's chunk."""
        if full is not None:
            self.keep(unit, self.shard(unit, full, "gradients"))

    def settle(self, *, whole: bool = False) -> None:
        """Agree on the factor for all gradients, or to skip this update: from their norm, if anything asks for it.

        `whole`: every rank has the sums of all chunks, not just of its own.
        """
        sums: Iterable[float] = ()
        if self.scaling.needs_norm:
            sums = self._square_sums() if whole else self._gathered_square_sums()
        self.factor = self.scaling.factor(sums)
        self.updates += self.factor is not None

    def update(self, unit: Unit, weights: Array) -> None:
        """Compute this step's updates of `weights`, full or this rank's chunk, and apply them."""
        if not unit.frozen and self.factor is not None:
            self.publication.update(self, unit, weights)

    def publish(self, unit: Unit, full: Array) -> None:
        """Let every rank have all updated weights of a unit, of which each has updated its chunk."""
        if not unit.frozen and self.factor is not None:
            self.publication.publish(self, unit, full)

    def apply_rule(self, unit: Unit, weights: Array) -> None:
        """One optimizer step in place."""
        self.rule.update(
            unit, self._start(unit, weights), weights, self._gradient_of(unit, weights), self.optimizer[unit],
            step=self.step, count=self.updates, factor=self.factor or 0.0,
        )

    def compute_updates(self, unit: Unit, weights: Array, out: Array) -> None:
        """The same step, left in `out` instead."""
        self.rule.differences(
            unit, self._start(unit, weights), weights, self._gradient_of(unit, weights), self.optimizer[unit],
            step=self.step, count=self.updates, factor=self.factor or 0.0, out=out,
        )

    def _gradient_of(self, unit: Unit, weights: Array) -> Array:
        kept = self.accumulated if self.manner.accumulates_in_float32 else self.gradients
        gradient = kept[unit]
        return gradient if len(gradient) == len(weights) else self.own(gradient)

    def _start(self, unit: Unit, weights: Array) -> int:
        whole = len(weights) == padded(unit.count, self.comm.size)
        return 0 if whole else self.comm.rank * len(weights)

    def _rounded_for_the_wire(self, full: Array) -> Array:
        if full.dtype == self.manner.wire:
            return full
        return self._copied("wire", full, self.manner.wire, "gradients")

    def _copied(self, owner: str, array: Array, dtype: npt.DTypeLike, kind: Kind) -> Array:
        copy = self.allocate(len(array), dtype, kind=kind, owner=owner)
        copy[:] = array
        return copy

    def _accumulate(self, kept: dict[Unit, Array], unit: Unit, gradient: Array) -> None:
        if unit in kept:
            kept[unit] += gradient
        else:
            kept[unit] = gradient

    def _chunk_sums(self, chunk: int) -> list[float]:
        """The sum of squares of one chunk of each trained unit."""
        sums = []
        for unit in self.units:
            if not unit.frozen:
                kept = self.accumulated if self.manner.accumulates_in_float32 else self.gradients
                start, stop = bounds(unit.count, self.comm.size)[chunk]
                held = kept[unit]
                whole = len(held) == padded(unit.count, self.comm.size)
                sums.append(square_sum(held[start:stop] if whole else held[: stop - start]))
        return sums

    def _square_sums(self) -> Iterator[float]:
        by_chunk = [self._chunk_sums(chunk) for chunk in range(self.comm.size)]
        return (sums[unit] for unit in range(len(by_chunk[0])) for sums in by_chunk)

    def _gathered_square_sums(self) -> Iterator[float]:
        mine = self._chunk_sums(self.comm.rank)
        everyone = np.empty((self.comm.size, len(mine)))
        everyone[self.comm.rank] = mine
        self.collectives.gather_norms(self.comm, list(everyone))
        return (float(everyone[chunk, unit]) for unit in range(len(mine)) for chunk in range(self.comm.size))
