"""What all rows are compared with: one process that trains from the start, leg by leg as the rows were resumed."""

from collections.abc import Iterator

from zerosim.reference import Snapshot
from zerosim.training.batches import Batches
from zerosim.training.build import reference
from zerosim.training.config import Config


def alone(batches: Batches) -> Iterator[tuple[Config, Snapshot]]:
    """The snapshot before the first step and after each, with the config of its leg.

    Where one leg ends and another begins there are two of the same step, in the units and chunks of either.
    """
    last: Snapshot | None = None
    for leg in batches.config.legs:
        stretch = Batches(leg.config, batches.dataset).all_ranks(last.step if last else 0, leg.until)
        for snapshot in reference(leg.config).train(stretch, last):
            yield leg.config, snapshot
        last = snapshot
