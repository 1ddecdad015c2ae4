"""Which samples a step takes, in the one global order of micro-batches, and which of them a rank takes.

A rank takes its block of a step as one `Batch`. The replica cuts it: micro-batch after micro-batch, or all together
in layered accumulation, which gathers each unit once per pass and has the activations of all micro-batches alive at
once.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from zerosim.allocation import Array
from zerosim.autograd.operations.losses import cross_entropy
from zerosim.data import Dataset, exact_share, sample_order
from zerosim.reference import MicroBatches
from zerosim.stages.replica import Batch
from zerosim.training.config import Config


@dataclass(frozen=True, eq=False)
class Batches:
    """The samples of a data set as a row takes them."""

    config: Config
    dataset: Dataset

    def micro_batches(self, step: int, block: slice = slice(None)) -> MicroBatches:
        """Inputs and targets of the micro-batches of step `step`, or a block of them."""
        train = self.config.row.train
        order = sample_order(len(self.dataset.x), step - 1, self.config.samples, train.seed)
        chosen = order.reshape(train.micro_batches, train.micro_batch)
        found = map(self.dataset.batch, chosen[block])
        return [(typed(x, self.config.computing.weights), y) for x, y in found]

    def all_ranks(self, after: int = 0, until: int | None = None) -> Iterator[MicroBatches]:
        """All micro-batches of every step behind step `after`, up to step `until`, else to the last."""
        for step in range(after + 1, (self.config.steps if until is None else until) + 1):
            yield self.micro_batches(step)

    def of_rank(self, rank: int) -> Iterator[Batch]:
        """The contiguous block of micro-batches of `rank` in every step of this run."""
        block = slice(rank * self.config.block, (rank + 1) * self.config.block)
        for step in range(self.config.done + 1, self.config.steps + 1):
            mine = self.micro_batches(step, block)
            yield Batch(step, [x for x, _ in mine], [y for _, y in mine], self.config.samples, block.start)

    def test_inputs(self) -> list[Array]:
        """All of the test split as one batch, or nothing."""
        x = self.dataset.x_test
        return [] if x is None else [typed(x, self.config.computing.weights)]

    def test(self, outputs: Array) -> float:
        """How good `outputs` are for the test split.

        Accuracy for labels, the share of sequences without a mistake for a task, the mean loss for a text, in nats for
        each token, and else the mean squared error.
        """
        expected = self.dataset.y_test
        assert expected is not None
        outputs = outputs.astype(self.config.outputs).astype(self.config.precision.state)
        match self.dataset.measure:
            case "exact sequences":
                return exact_share(outputs.argmax(axis=-1), expected)
            case "loss":
                loss, _ = cross_entropy(outputs, expected, len(outputs), empty=np.empty)
                return float(loss[0])
            case "accuracy":
                return float(np.mean(outputs.argmax(axis=1) == expected))
        return float(np.mean(np.square(outputs - expected)))


def typed(x: Array, dtype: npt.DTypeLike) -> Array:
    """Numbers as `dtype`; tokens, which are integers, as they are."""
    return x if x.dtype.kind == "i" else x.astype(dtype, copy=False)
