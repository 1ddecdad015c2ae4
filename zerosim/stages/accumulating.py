"""Accumulation: the micro-batches that run forward and backward together, and those after which gradients are reduced.

    boundary       one micro-batch after another; ranks add their gradients after the last one
    micro_batch    one micro-batch after another; ranks add their gradients after each
    layered        all micro-batches of a rank run through a unit before the next unit
"""

from collections.abc import Iterator
from dataclasses import replace

from zerosim.stages.replica import Accumulation, Batch, Replica


class AtBoundary:
    """One micro-batch after another, reduced after the last one.

    PyTorch: `no_sync` around all micro-batches but the last. DeepSpeed: the gradient accumulation boundary.
    """

    def parts(self, replica: Replica, batch: Batch) -> Iterator[Batch]:
        for number, (x, y) in enumerate(zip(batch.inputs, batch.targets, strict=True), start=1):
            first = replica.tape.first_micro_batch = batch.first + number - 1
            yield replace(batch, inputs=[x], targets=[y], first=first, last=number == len(batch.inputs))

    def reduces(self, part: Batch) -> bool:
        return part.last


class EveryMicroBatch(AtBoundary):
    """One micro-batch after another, each reduced separately."""

    def reduces(self, part: Batch) -> bool:
        return True


class Layered:
    """All micro-batches together, unit by unit."""

    def parts(self, replica: Replica, batch: Batch) -> Iterator[Batch]:
        yield batch

    def reduces(self, part: Batch) -> bool:
        return True


ACCUMULATION: dict[str, type[Accumulation]] = {
    "boundary": AtBoundary, "micro_batch": EveryMicroBatch, "layered": Layered,
}
