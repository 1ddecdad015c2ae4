"""What a scenario trains, in the terms that the stages and the reference share.

Both get their micro-batches, initial weights, tape and optimizer rule from here. Where model states are kept, how
gradients are added and how they travel is the stages' own affair; the reference adds as `orders` declares.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from zerosim.allocation import Allocator, Array
from zerosim.autograd.tape import Tape
from zerosim.collectives import ring, tree
from zerosim.comm import Communicator
from zerosim.instruments.traffic import Traffic
from zerosim.model import Model, Unit, initial, mlp
from zerosim.optim import OPTIMIZERS, Hyperparameters
from zerosim.orders import ORDERS, Order
from zerosim.precision import PRECISIONS, Precision
from zerosim.reference import Alone, Arithmetic, MicroBatches
from zerosim.scaling import INITIAL_SCALE, Scaling
from zerosim.scenario import Scenario, World
from zerosim.scenario.dataset import Dataset, sample_order
from zerosim.stages import STAGES
from zerosim.stages.adding import ADDITIONS, Addition, widening
from zerosim.stages.gathering import Ahead, Anew, Once
from zerosim.stages.publishing import PUBLICATIONS
from zerosim.stages.replica import Batch, Collectives, Gathering, Manner, Replica
from zerosim.updating import Rule, Schedule


@dataclass(frozen=True, eq=False)
class Recipe:
    """A model, data in a fixed order, and how it is trained."""

    scenario: Scenario
    dataset: Dataset
    model: Model
    rule: Rule

    @property
    def samples(self) -> int:
        """In the global batch of one step."""
        return self.scenario.train.micro_batches * self.scenario.train.micro_batch

    @property
    def precision(self) -> Precision:
        """Of weights, activations and gradients."""
        return self.rule.precision

    @property
    def order(self) -> Order:
        """The order of addition, as declared."""
        return ORDERS[self.scenario.parallel.order]

    @property
    def addition(self) -> Addition:
        """The order of addition, as the stages carry it out."""
        return ADDITIONS[self.scenario.parallel.order]

    @property
    def wire(self) -> np.dtype[np.generic]:
        """The dtype in which gradients travel and are added."""
        return np.dtype(np.float32) if self.scenario.parallel.reduce_dtype == "fp32" else self.precision.weights

    @property
    def parts(self) -> int:
        """How many times in a step a stage that reduces every micro-batch by itself goes forward and backward."""
        return self.scenario.train.micro_batches // self.scenario.world.ranks

    @property
    def part_by_part(self) -> bool:
        """Whether every micro-batch is reduced by itself, which is another order of addition."""
        asked = self.scenario.parallel.accumulation == "micro_batch"
        return asked and STAGES[self.stage].may_reduce_parts and self.parts > 1

    @property
    def sums_everywhere(self) -> bool:
        """Whether after a reduction every rank has the sums of all chunks of a gradient, not only its own."""
        row, to_all = STAGES[self.stage], self.scenario.parallel.gradients == "all_reduce"
        return (row.publishes and to_all) or not (row.publishes or row.gathers)

    @property
    def publishes_updates(self) -> bool:
        """Whether 16-bit updates travel and are subtracted from 16-bit weights, which is another computation.

        In float32, applying updates everywhere is the same computation as applying them once.
        """
        published = self.scenario.parallel.publish == "updates" and STAGES[self.stage].publishes
        return published and self.precision.mixed

    def scaling(self) -> Scaling:
        """The loss scale before the first step, and the norm to clip at."""
        train = self.scenario.train
        if isinstance(train.loss_scale, str):
            dynamic = self.precision.scales_loss
            return Scaling(INITIAL_SCALE if dynamic else 1.0, dynamic, train.clip_norm)
        return Scaling(train.loss_scale, False, train.clip_norm)

    @property
    def stage(self) -> str:
        """Of a row: the one that it trains by."""
        (stage,) = self.scenario.parallel.stages
        return stage

    @property
    def rows(self) -> "list[tuple[str, Recipe]]":
        """A recipe for each variant or stage of the scenario, with its name."""
        return [
            (name or STAGES[row.parallel.stages[0]].title, prepare(row, self.dataset))
            for name, row in self.scenario.rows
        ]

    @property
    def arithmetic(self) -> tuple[object, ...]:
        """What the reference must know of a row: rows that share it share a reference."""
        parallel = self.scenario.parallel
        return (
            str(self.scenario.groups), self.part_by_part, parallel.accumulate_dtype, parallel.reduce_dtype,
            self.publishes_updates,
        )

    def on(self, ranks: int) -> "Recipe":
        """The same training on another number of ranks."""
        check = replace(self.scenario.check, same_bits_on=())
        return replace(self, scenario=replace(self.scenario, world=World(ranks), check=check))

    def initial(self, unit: Unit) -> Array:
        """The weights of `unit` before the first step: float32, the same on every rank, drawn from the seed."""
        return initial(unit, self.scenario.train.seed)

    def micro_batches(self, step: int, block: slice = slice(None)) -> MicroBatches:
        """Inputs and targets of the micro-batches of step `step`, or a block of them, in the one global order."""
        train = self.scenario.train
        order = sample_order(len(self.dataset.x), step - 1, self.samples, train.seed)
        chosen = order.reshape(train.micro_batches, train.micro_batch)
        x, y, dtype = self.dataset.x, self.dataset.y, self.precision.weights
        return [(x[samples].astype(dtype, copy=False), y[samples]) for samples in chosen[block]]

    def global_batches(self) -> Iterator[MicroBatches]:
        """All micro-batches of every step."""
        for step in range(1, self.scenario.train.steps + 1):
            yield self.micro_batches(step)

    def batches(self, rank: int) -> Iterator[Batch]:
        """The contiguous block of micro-batches of `rank` in every step."""
        block = slice(rank * self.parts, (rank + 1) * self.parts)
        for step in range(1, self.scenario.train.steps + 1):
            mine = self.micro_batches(step, block)
            yield Batch(step, [x for x, _ in mine], [y for _, y in mine], self.samples)

    def test(self, outputs: Array) -> float:
        """How good `outputs` are for the test split: accuracy for labels, else the mean squared error."""
        expected = self.dataset.y_test
        assert expected is not None
        outputs = outputs.astype(np.float32)
        if self.dataset.classes is None:
            return float(np.mean(np.square(outputs - expected)))
        return float(np.mean(outputs.argmax(axis=1) == expected))

    def replica(self, traffic: Traffic, allocate: Allocator, ahead: Communicator | None = None) -> Replica:
        """One rank's tools, whose collectives `traffic` counts; `ahead` carries what is prefetched."""
        parallel, addition = self.scenario.parallel, self.addition
        in_float32 = parallel.accumulate_dtype == "fp32"
        accumulate = widening(addition.accumulate, allocate) if in_float32 else addition.accumulate

        return Replica(
            comm=traffic,
            units=self.model.units,
            loss_name=self.model.loss,
            tape=Tape(allocate, accumulate, self.model.lowest_trained),
            rule=self.rule,
            scaling=self.scaling(),
            manner=Manner(
                wire=self.wire,
                accumulates_in_float32=in_float32,
                reduces_to_all=parallel.gradients == "all_reduce",
                part_by_part=self.part_by_part,
            ),
            collectives=Collectives(
                reduce_scatter=traffic.counted("reduce_scatter", addition.reduce_scatter),
                all_gather=traffic.counted("all_gather", ring.all_gather),
                gather_norms=traffic.counted("gather_norms", ring.all_gather),
                broadcast=traffic.counted("broadcast", tree.broadcast),
            ),
            publication=PUBLICATIONS[parallel.publish if STAGES[self.stage].publishes else "weights"](),
            gathering=self.gathering(ahead),
            allocate=allocate,
        )

    def gathering(self, ahead: Communicator | None) -> Gathering:
        """How Stage III gathers weights."""
        if self.scenario.parallel.prefetch:
            return Ahead(ahead)
        return Anew() if self.scenario.parallel.reshard_after_forward else Once()

    def alone(self) -> Alone:
        """The same training in one process, the reference."""
        in_float32 = self.scenario.parallel.accumulate_dtype == "fp32"
        return Alone(
            model=self.model,
            initial=self.initial,
            rule=self.rule,
            scaling=self.scaling,
            ranks=self.scenario.world.ranks,
            order=self.order,
            arithmetic=Arithmetic(
                accumulate=np.float32 if in_float32 else self.precision.weights,
                wire=self.wire,
                accumulates_in_float32=in_float32,
                part_by_part=self.part_by_part,
                publishes_updates=self.publishes_updates,
            ),
        )


def prepare(scenario: Scenario, dataset: Dataset) -> Recipe:
    """The recipe of a scenario, with a model as wide as its data.

    Raises `ScenarioError` when a test accuracy is wanted of data that cannot give one, or a unit is frozen in part.
    """
    if scenario.check.test_accuracy and (dataset.x_test is None or dataset.classes is None):
        raise scenario.origin.error(
            "check.test_accuracy needs integer labels and a test split, x_test and y_test, in data.source",
            ("check", "test_accuracy"),
        )
    model = mlp(
        dataset.inputs, scenario.model.hidden, dataset.outputs, scenario.model.activation, dataset.loss,
        groups=scenario.groups, frozen=scenario.model.frozen,
    )
    train = scenario.train
    return Recipe(
        scenario, dataset, model,
        Rule(
            OPTIMIZERS[train.optimizer],
            Hyperparameters(train.learning_rate, train.betas, train.epsilon, train.momentum, train.weight_decay),
            Schedule(train.learning_rate, train.schedule, train.warmup_steps, train.steps),
            PRECISIONS[train.precision],
            train.decay_biases,
        ),
    )
