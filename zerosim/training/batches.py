"""The samples of a step in the global order of micro-batches, and each rank's share of them.

A rank gets its block of a step as one `Batch`. The replica splits it: one micro-batch after the other, or all together
in layered accumulation, which gathers each unit once per pass and keeps the activations of all micro-batches alive at
the same time.
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
    """The samples of a data set in the order of a row."""

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
        """All micro-batches of each step after step `after`, up to step `until` or to the last step."""
        for step in range(after + 1, (self.config.steps if until is None else until) + 1):
            yield self.micro_batches(step)

    def of_rank(self, rank: int) -> Iterator[Batch]:
        """The contiguous block of micro-batches of `rank` in every step of this run."""
        block = slice(rank * self.config.block, (rank + 1) * self.config.block)
        for step in range(self.config.done + 1, self.config.steps + 1):
            mine = self.micro_batches(step, block)
            yield Batch(step, [x for x, _ in mine], [y for _, y in mine], self.config.samples, block.start)

    def test_inputs(self) -> list[Array]:
        """The inputs of the test split as one batch; empty without a test split."""
        x = self.dataset.x_test
        return [] if x is None else [typed(x, self.config.computing.weights)]

    def test(self, outputs: Array) -> float:
        """The measure of `outputs` on the test split.

        It is the accuracy for labels, the share of sequences without an error for a task, the mean loss per token in
        nats for a text, and the mean squared error otherwise.
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
    """Numbers as `dtype`; tokens, which are integers, unchanged."""
    return x if x.dtype.kind == "i" else x.astype(dtype, copy=False)
