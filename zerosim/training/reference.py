"""The reference: one process with full weights and full optimizer state, which adds in the declared order.

Nothing here is distributed. The reference knows how micro-batches are divided among ranks and into how many chunks a
unit is cut, because the declared order of addition refers to both. It imports no collective, no stage and no world,
and its loops are simple enough to be verified by reading.

The reference shares the tape, the operations, the optimizer and the stream of samples with the stages. An error in
those is on both sides of every comparison: in 16 bits relu and tanh were once not applied for a day, and every run
passed. Two trainers written from `docs/computation.md` alone (`tests/independent/mlp.py`,
`tests/independent/tape.py`) and recorded answers of PyTorch give the second opinion.

The reference replays what a variant changes: 16-bit weights to which updates are applied, micro-batches reduced one by
one, groups whose sums are added, quantised messages. Where a run resumes, it begins with the same file, read in units
of its own.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce

import numpy as np
import numpy.typing as npt

from zerosim.autograd.operations.losses import counted
from zerosim.autograd.player import perform
from zerosim.autograd.tape import Tape
from zerosim.autograd.tape_collectives import TapeGroups, added_over, over
from zerosim.core.allocation import Array
from zerosim.core.bits import with_one_nan
from zerosim.core.orders import Arrives
from zerosim.core.sharding import Mesh, bounds, padded
from zerosim.core.wires import WireError, wire_error
from zerosim.models.units import Model, Unit
from zerosim.stages.arithmetic import Arithmetic
from zerosim.stages.scaling import Scaling, counted_square_sum
from zerosim.stages.update import MASTER, UpdateRule

MicroBatches = Sequence[tuple[Array, Array]]


@dataclass(frozen=True)
class Snapshot:
    """The state of training after `step` steps: a flat, unpadded array for each unit, optimizer slot and gradient."""

    step: int
    loss: Array
    weights: Mapping[Unit, Array]
    optimizer: Mapping[Unit, Mapping[str, Array]]
    gradients: Mapping[Unit, "Gradient"]
    updates: int
    """The number of steps that were not skipped."""
    scaling: Scaling
    wire_errors: Mapping[str, WireError] = field(default_factory=dict)
    """The errors of this step's weights and gradients that quantised messages cause."""


@dataclass(frozen=True)
class Gradient:
    """A unit's gradient in the precision of the weights and, where micro-batches add up in float32, also that sum."""

    narrow: Array
    accumulated: Array | None
    unquantised: Array | None = None
    """The sum without quantised messages; used for `wire_errors` only."""

    def __add__(self, other: "Gradient") -> "Gradient":
        """The sum of a unit's gradients at the two ends of a pipeline."""
        wide = None if self.accumulated is None or other.accumulated is None else self.accumulated + other.accumulated
        return Gradient(self.narrow + other.narrow, wide)

    @property
    def used(self) -> Array:
        """The gradient that the optimizer reads."""
        return self.narrow if self.accumulated is None else self.accumulated


@dataclass(frozen=True)
class Reference:
    """One process that trains `model`, and adds in the order that `arithmetic` declares for the ranks of `mesh`."""

    model: Model
    initial: Callable[[Unit], Array]
    rule: UpdateRule
    scaling: Callable[[], Scaling]
    draw: Callable[[int, Array, int, int, int], None]
    mesh: Mesh
    arithmetic: Arithmetic
    groups: TapeGroups = field(default_factory=dict)
    """The groups of the place that it trains, if ranks share micro-batches; see `places`."""
    ends: Sequence[Unit] = ()
    """The units that run; a unit's two ends, if it is on two ranks of a pipeline, where it has two sums."""

    @property
    def trained(self) -> list[Unit]:
        return [unit for unit in self.model.units if not unit.frozen]

    def train(self, batches: Iterator[MicroBatches], after: Snapshot | None = None) -> Iterator[Snapshot]:
        """The snapshot before the first step, or `after` a saved one, then one after each; its arrays are live."""
        start = after or self.begun()
        yield start
        weights, optimizer, scaling, count = start.weights, start.optimizer, start.scaling, start.updates
        for step, micro_batches in enumerate(batches, start=start.step + 1):
            loss, gradients = self.gradients(weights, micro_batches, step, scaling.loss_scale)
            errors = self.wire_errors(weights, gradients)
            needed = scaling.needs_norm
            factor = scaling.factor(added_over(self.groups, self.square_sums(gradients)) if needed else ())
            if factor is not None:
                count += 1
                for unit in self.trained:
                    self.update(unit, weights[unit], gradients[unit].used, optimizer[unit],
                                step=step, count=count, factor=factor)
            yield Snapshot(step, with_one_nan(loss), weights, optimizer, gradients, count, scaling, errors)

    def begun(self) -> Snapshot:
        """The state before the first step: initial weights, master copies of them, and zeros."""
        initial = {unit: self.initial(unit) for unit in self.model.units}
        weights = {unit: values.astype(self.rule.precision.weights) for unit, values in initial.items()}
        optimizer = {
            unit: {
                slot: initial[unit].copy() if slot == MASTER else np.zeros(unit.count, self.rule.precision.state)
                for slot in self.rule.slots
            }
            for unit in self.trained
        }
        loss = np.zeros(1, self.rule.precision.losses)
        return Snapshot(0, loss, weights, optimizer, {}, 0, self.scaling())

    def update(
        self, unit: Unit, weights: Array, gradient: Array, state: Mapping[str, Array],
        *, step: int, count: int, factor: float,
    ) -> None:
        """One optimizer step of a whole unit, in place."""
        if not self.arithmetic.publishes_updates and self.rule.optimizer.of_matrix is None:
            self.rule.update(unit, 0, weights, gradient, state, step=step, count=count, factor=factor)
            return
        updates = np.empty_like(weights)
        self.rule.update(unit, 0, weights, gradient, state, step=step, count=count, factor=factor, out=updates)
        self.rule.of_matrices(unit, updates, step=step)
        self.rule.apply(unit, 0, weights, updates, step=step)

    def gradients(
        self, weights: Mapping[Unit, Array], micro_batches: MicroBatches, step: int, loss_scale: float
    ) -> tuple[Array, dict[Unit, Gradient]]:
        """The loss and every unit's gradient of one global batch, summed over all micro-batches."""
        count = sum(counted(targets) for _, targets in micro_batches)
        losses: list[Array] = []
        passed = replace(self.model, units=tuple(self.ends or self.model.units))
        contributions: dict[Unit, list[Array]] = {unit: [] for unit in passed.units if not unit.frozen}
        flats = {unit.numbers: self.computed_with(flat) for unit, flat in weights.items()}
        computed_with = {unit: flats[unit.numbers] for unit in passed.units}
        for number, (inputs, targets) in enumerate(micro_batches):
            tape = Tape(
                lowest=self.model.lowest_trained, draw=partial(self.draw, step), output_dtype=self.arithmetic.output,
                policy=self.arithmetic.policy, perform=over(self.groups, perform), loss_over=self.model.loss_over)
            tape.loss_scale, tape.first_micro_batch = loss_scale, number
            loss, gradients = backpropagate(passed, tape, computed_with, inputs, targets, count)
            losses.append(loss)
            for unit, partials in contributions.items():
                partials.append(gradients[unit])
        return self.arithmetic.order.total(losses, self.mesh), {
            unit: reduce(Gradient.__add__, (self.gradient(partials) for end, partials in contributions.items()
                               if end.numbers == unit.numbers))
            for unit in self.trained
        }

    def computed_with(self, flat: Array) -> Array:
        """A unit's weights as ranks receive them from the all-gather: quantised shard by shard, if at all."""
        arriving = flat
        if self.arithmetic.weights_wire is not None:
            length = padded(len(flat), self.mesh.size)
            arriving = np.concatenate([
                self.arithmetic.weights_wire.arriving(flat[start:stop])
                for start, stop in bounds(length, self.mesh.group)])
        return arriving.astype(self.arithmetic.compute, copy=False)

    def gradient(self, contributions: Sequence[Array]) -> Gradient:
        """A unit's gradient: all micro-batches, rank by rank; or, `part_by_part`, the k-th micro-batch of every rank
        for each k."""
        arithmetic, coded = self.arithmetic, self.arithmetic.gradients_wire
        contributions = [contribution.astype(arithmetic.accumulate, copy=False) for contribution in contributions]
        block = len(contributions) // self.mesh.size
        parts = [contributions[k::block] for k in range(block)] if arithmetic.part_by_part else [contributions]

        def sums(arrives: Arrives | None = None) -> list[Array]:
            return [arithmetic.order.total(part, self.mesh, arithmetic.wire, arrives) for part in parts]

        arrived = sums(None if coded is None else lambda sent, sender: coded.arriving(sent))
        kept_in = self.rule.precision.weights
        wide = added(arrived, np.float32) if arithmetic.accumulates_in_float32 else None
        return Gradient(added(arrived, kept_in), wide, None if coded is None else added(sums(), kept_in))

    def wire_errors(
        self, weights: Mapping[Unit, Array], gradients: Mapping[Unit, Gradient]
    ) -> dict[str, WireError]:
        """The quantisation errors of weights and of gradients, over all units together."""
        errors = {}
        if self.arithmetic.weights_wire is not None:
            errors["weights"] = wire_error([self.computed_with(flat) for flat in weights.values()], [*weights.values()])
        pairs = [(total.narrow, total.unquantised) for total in gradients.values() if total.unquantised is not None]
        if pairs:
            arrived, sent = zip(*pairs, strict=True)
            errors["gradients"] = wire_error(arrived, sent)
        return errors

    def square_sums(self, gradients: Mapping[Unit, Gradient]) -> Iterator[float]:
        """The sum of squares of each chunk, unit by unit: of the elements for which this place answers."""
        place = {name: group.place for name, group in self.groups.items()}
        for unit in self.trained:
            for start, stop in bounds(unit.count, self.mesh.size):
                yield counted_square_sum(unit, start, gradients[unit].used[start:stop], place)


def backpropagate(
    model: Model, tape: Tape, weights: Mapping[Unit, Array], inputs: Array, targets: Array, count: int
) -> tuple[Array, dict[Unit, Array]]:
    """One micro-batch, forward and backward; its loss is scaled by 1 / `count`, the targets that count in the step."""
    activations, gradients = [inputs], {}
    for unit in model.forward_units:
        activations = tape.forward(unit, weights[unit], activations)
    loss, upstreams = tape.loss(model.task.loss, activations, [targets], count)
    for unit in model.backward_units:
        upstreams, gradients[unit] = tape.backward(unit, weights[unit], upstreams)
    return loss, gradients


def added(sums: Sequence[Array], dtype: npt.DTypeLike) -> Array:
    """The parts' sums, each rounded to `dtype`, left to right."""
    return reduce(np.add, [addend.astype(dtype, copy=False) for addend in sums])
