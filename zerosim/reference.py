"""Training alone: one process, full weights, full optimizer state, additions in the declared order.

Nothing here is distributed. The reference knows into how many ranks' blocks the micro-batches fall and into how many
chunks a unit is cut, because the declared order of addition speaks of both; it imports no collective, no stage and
no world, and its loops are meant to be believed by reading them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from zerosim.allocation import Array
from zerosim.autograd.tape import Tape
from zerosim.model import Model, Unit
from zerosim.orders import Order

MicroBatches = Sequence[tuple[Array, Array]]
Rule = Callable[[Array, Array, Mapping[str, Array], int], None]


@dataclass(frozen=True)
class Snapshot:
    """The state of training after `step` steps: a flat, unpadded array for each unit and optimizer slot."""

    step: int
    loss: Array
    weights: Mapping[Unit, Array]
    optimizer: Mapping[Unit, Mapping[str, Array]]


@dataclass(frozen=True)
class Alone:
    """One process that trains `model`, and adds in the order that `order` declares for `ranks` ranks."""

    model: Model
    initial: Callable[[Unit], Array]
    rule: Rule
    slots: Sequence[str]
    ranks: int
    order: Order

    def train(self, batches: Iterator[MicroBatches]) -> Iterator[Snapshot]:
        """The snapshot before the first step, then one after each; the arrays in it are the live ones."""
        weights = {unit: self.initial(unit).copy() for unit in self.model.units}
        optimizer = {
            unit: {slot: np.zeros_like(weights[unit]) for slot in self.slots}
            for unit in self.model.units
        }
        yield Snapshot(0, np.zeros(1, np.float32), weights, optimizer)
        for step, micro_batches in enumerate(batches, start=1):
            loss, gradients = self.gradients(weights, micro_batches)
            for unit in self.model.units:
                self.rule(weights[unit], gradients[unit], optimizer[unit], step)
            yield Snapshot(step, loss, weights, optimizer)

    def gradients(
        self, weights: Mapping[Unit, Array], micro_batches: MicroBatches
    ) -> tuple[Array, dict[Unit, Array]]:
        """The loss and every unit's gradient of one global batch, summed over all micro-batches."""
        samples = sum(len(inputs) for inputs, _ in micro_batches)
        losses: list[Array] = []
        gradients: dict[Unit, list[Array]] = {unit: [] for unit in self.model.units}
        for inputs, targets in micro_batches:
            loss, found = self.backpropagate(weights, inputs, targets, samples)
            losses.append(loss)
            for unit in self.model.units:
                gradients[unit].append(found[unit])
        return self.order.total(losses, self.ranks), {
            unit: self.order.total(contributions, self.ranks) for unit, contributions in gradients.items()
        }

    def backpropagate(
        self, weights: Mapping[Unit, Array], inputs: Array, targets: Array, samples: int
    ) -> tuple[Array, dict[Unit, Array]]:
        """One micro-batch, forward and backward; its loss is scaled by 1 / samples."""
        tape, activations, gradients = Tape(), [inputs], {}
        for unit in self.model.units:
            activations = tape.forward(unit, weights[unit], activations)
        loss, upstreams = tape.loss(self.model.loss, activations, [targets], samples)
        for unit in reversed(self.model.units):
            upstreams, gradients[unit] = tape.backward(unit, weights[unit], upstreams)
        return loss, gradients
