"""Micro-batches that a rehearsal need not go through, because they would take what the one before them took.

What a micro-batch does depends on what is on its way as it begins. So once two have taken the same intervals, all
others do, up to the last one, which may reduce gradients. Orders in which sums get more and more have no such two.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from zerosim.planner.clock import Interval, VirtualClock
from zerosim.stages.replica import Accumulation, Batch, Replica


@dataclass(eq=False)
class Skipping:
    """The accumulation `whole`, except that micro-batches between two alike and the last are skipped."""

    whole: Accumulation
    clock: VirtualClock
    skips: bool
    """Whether any may be skipped."""
    skipped: int = 0
    steady: tuple[Interval, Counter[str]] | None = None
    """What each of those skipped would have taken: time, and floating-point operations."""

    def parts(self, replica: Replica, batch: Batch) -> Iterator[Batch]:
        self.steady, before = None, None
        for part in self.whole.parts(replica, batch):
            if self.steady is not None and not part.last:
                self.skipped += 1
                continue
            reading, operations = self.clock.reading(), Counter(replica.tape.operations)
            yield part
            found = self.clock.since(reading), Counter(replica.tape.operations) - operations
            if self.skips and found == before:
                self.steady = found
            before = found

    def reduces(self, part: Batch) -> bool:
        return self.whole.reduces(part)

    def repeat_skipped(self, operations: dict[str, int]) -> None:
        """At the end of the step: add what the skipped ones would have taken, to the clock and to `operations`."""
        if self.steady is not None:
            taken, each = self.steady
            self.clock.repeat(self.skipped, taken)
            for what, count in each.items():
                operations[what] += self.skipped * count
