"""Micro-batches that a rehearsal skips, because they would take the same time as the previous ones.

The time of a micro-batch depends on the work under way when it begins. So once two have taken equal intervals, all
others do, up to the last one, which may reduce gradients. Orders of addition in which the number of sums grows have no
two equal intervals.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from zerosim.plan.clock import Interval, VirtualClock
from zerosim.stages.replica import Accumulation, Batch, Replica


@dataclass(eq=False)
class Skipping:
    """The accumulation `whole`, which skips micro-batches after two equal ones, except the last."""

    whole: Accumulation
    clock: VirtualClock
    skips: bool
    """Whether any may be skipped."""
    skipped: int = 0
    steady: tuple[Interval, Counter[str]] | None = None
    """The interval and floating-point operations of each skipped micro-batch."""

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
        """Add the skipped micro-batches to the clock and to `operations`, at the end of the step."""
        if self.steady is not None:
            taken, each = self.steady
            self.clock.repeat(self.skipped, taken)
            for what, count in each.items():
                operations[what] += self.skipped * count
