"""Which samples a step takes, in the one global order of micro-batches, and which of them a rank takes."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from zerosim.allocation import Array
from zerosim.data import Dataset, sample_order
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
        x, y, dtype = self.dataset.x, self.dataset.y, self.config.precision.weights
        return [(typed(x[samples], dtype), y[samples]) for samples in chosen[block]]

    def all_ranks(self) -> Iterator[MicroBatches]:
        """All micro-batches of every step."""
        for step in range(1, self.config.steps + 1):
            yield self.micro_batches(step)

    def of_rank(self, rank: int) -> Iterator[Batch]:
        """The contiguous block of micro-batches of `rank` in every step."""
        block = slice(rank * self.config.block, (rank + 1) * self.config.block)
        for step in range(1, self.config.steps + 1):
            mine = self.micro_batches(step, block)
            yield Batch(step, [x for x, _ in mine], [y for _, y in mine], self.config.samples, block.start)

    def test_inputs(self) -> list[Array]:
        """All of the test split as one batch, or nothing."""
        x = self.dataset.x_test
        return [] if x is None else [typed(x, self.config.precision.weights)]

    def test(self, outputs: Array) -> float:
        """How good `outputs` are for the test split: accuracy for labels, else the mean squared error."""
        expected = self.dataset.y_test
        assert expected is not None
        outputs = outputs.astype(self.config.precision.state)
        if self.dataset.classes is None:
            return float(np.mean(np.square(outputs - expected)))
        return float(np.mean(outputs.argmax(axis=1) == expected))


def typed(x: Array, dtype: npt.DTypeLike) -> Array:
    """Numbers as `dtype`; tokens, which are integers, as they are."""
    return x if x.dtype.kind == "i" else x.astype(dtype, copy=False)
