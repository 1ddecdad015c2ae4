"""What a scenario trains, in the terms that the stages and the reference share.

Both get their micro-batches, initial weights and optimizer rule from here and have nothing else in common: how
gradients are added and where model states are kept is each one's own affair.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from zerosim.allocation import Allocator, Array
from zerosim.autograd.tape import Tape
from zerosim.collectives import ring
from zerosim.instruments.traffic import Traffic
from zerosim.model import Model, Unit, initial, mlp
from zerosim.optim import OPTIMIZERS, Hyperparameters, Optimizer
from zerosim.orders import ORDERS, Order
from zerosim.reference import Alone, MicroBatches
from zerosim.scenario import Scenario, World
from zerosim.scenario.dataset import Dataset, sample_order
from zerosim.stages.adding import ADDITIONS, Addition
from zerosim.stages.replica import Batch, Replica


@dataclass(frozen=True, eq=False)
class Recipe:
    """A model, data in a fixed order, and an optimizer."""

    scenario: Scenario
    dataset: Dataset
    model: Model
    optimizer: Optimizer
    hyperparameters: Hyperparameters

    @property
    def samples(self) -> int:
        """In the global batch of one step."""
        return self.scenario.train.micro_batches * self.scenario.train.micro_batch

    @property
    def order(self) -> Order:
        """The order of addition, as declared."""
        return ORDERS[self.scenario.parallel.order]

    @property
    def addition(self) -> Addition:
        """The order of addition, as the stages carry it out."""
        return ADDITIONS[self.scenario.parallel.order]

    def on(self, ranks: int) -> "Recipe":
        """The same training on another number of ranks."""
        check = replace(self.scenario.check, same_bits_on=())
        return replace(self, scenario=replace(self.scenario, world=World(ranks), check=check))

    def initial(self, unit: Unit) -> Array:
        """The weights of `unit` before the first step: the same on every rank, drawn from the seed."""
        return initial(unit, self.scenario.train.seed)

    def rule(self, weights: Array, gradient: Array, state: Mapping[str, Array], step: int) -> None:
        """One optimizer step, in place."""
        self.optimizer.update(weights, gradient, state, step, self.hyperparameters)

    def micro_batches(self, step: int, block: slice = slice(None)) -> MicroBatches:
        """Inputs and targets of the micro-batches of step `step`, or a block of them, in the one global order."""
        train = self.scenario.train
        order = sample_order(len(self.dataset.x), step - 1, self.samples, train.seed)
        chosen = order.reshape(train.micro_batches, train.micro_batch)
        return [(self.dataset.x[samples], self.dataset.y[samples]) for samples in chosen[block]]

    def global_batches(self) -> Iterator[MicroBatches]:
        """All micro-batches of every step."""
        for step in range(1, self.scenario.train.steps + 1):
            yield self.micro_batches(step)

    def batches(self, rank: int) -> Iterator[Batch]:
        """The contiguous block of micro-batches of `rank` in every step."""
        length = self.scenario.train.micro_batches // self.scenario.world.ranks
        block = slice(rank * length, (rank + 1) * length)
        for step in range(1, self.scenario.train.steps + 1):
            mine = self.micro_batches(step, block)
            yield Batch(step, [x for x, _ in mine], [y for _, y in mine], self.samples)

    def test(self, outputs: Array) -> float:
        """How good `outputs` are for the test split: accuracy for labels, else the mean squared error."""
        expected = self.dataset.y_test
        assert expected is not None
        if self.dataset.classes is None:
            return float(np.mean(np.square(outputs - expected)))
        return float(np.mean(outputs.argmax(axis=1) == expected))

    def replica(self, traffic: Traffic, allocate: Allocator) -> Replica:
        """One rank's tools for any of the stages, whose collectives `traffic` counts."""
        return Replica(
            comm=traffic,
            units=self.model.units,
            loss=self.model.loss,
            tape=Tape(allocate, self.addition.accumulate),
            rule=self.rule,
            slots=self.optimizer.slots,
            allocate=allocate,
            scatter_sums=traffic.counted("reduce_scatter", self.addition.reduce_scatter),
            gather_chunks=traffic.counted("all_gather", ring.all_gather),
        )

    def alone(self) -> Alone:
        """The same training in one process, the reference."""
        return Alone(
            model=self.model,
            initial=self.initial,
            rule=self.rule,
            slots=self.optimizer.slots,
            ranks=self.scenario.world.ranks,
            order=self.order,
        )


def prepare(scenario: Scenario, dataset: Dataset) -> Recipe:
    """The recipe of a scenario, with a model as wide as its data.

    Raises `ScenarioError` when a test accuracy is wanted of data that cannot give one.
    """
    if scenario.check.test_accuracy and (dataset.x_test is None or dataset.classes is None):
        raise scenario.origin.error(
            "check.test_accuracy needs integer labels and a test split, x_test and y_test, in data.source",
            ("check", "test_accuracy"),
        )
    train = scenario.train
    model = mlp(
        dataset.inputs, scenario.model.hidden, dataset.outputs, scenario.model.activation, dataset.loss
    )
    hyperparameters = Hyperparameters(
        train.learning_rate, train.betas, train.epsilon, train.momentum, train.weight_decay
    )
    return Recipe(scenario, dataset, model, OPTIMIZERS[train.optimizer], hyperparameters)
