"""Training in one process, with which all rows are compared, leg by leg as the rows were resumed."""

from collections.abc import Iterator

from zerosim.reference import Snapshot
from zerosim.training.batches import Batches
from zerosim.training.build import reference
from zerosim.training.config import Config


def alone(batches: Batches) -> Iterator[tuple[Config, Snapshot]]:
    """The snapshots before the first step and after each step, each with the config of its leg.

    At the boundary of two legs there are two snapshots of the same step, in the units and chunks of each leg.
    """
    last: Snapshot | None = None
    for leg in batches.config.legs:
        stretch = Batches(leg.config, batches.dataset).all_ranks(last.step if last else 0, leg.until)
        for snapshot in reference(leg.config).train(stretch, last):
            yield leg.config, snapshot
        last = snapshot
