"""The passes of a planned pipeline: those of the first two micro-batches and of the last are run, the others repeated.

A pass takes as long, holds as much and sends the same as that of the second micro-batch: the first has no gradients to
add to, and the last reduces them. If every micro-batch reduces them, all passes are run. Messages to other ranks of the
pipeline are sent in each, so ranks wait as they do.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from zerosim.core.allocation import Array, Kind
from zerosim.observe.memory import Ledger
from zerosim.plan.clock import Interval, VirtualClock
from zerosim.stages.pipeline import Pipeline
from zerosim.stages.replica import Batch
from zerosim.stages.schedules import Slot

FIRST_RUN = 2
"""The micro-batches that are run at the beginning of a step, beside the last one."""


@dataclass
class SeenPass:
    """The time, the operations and the memory of a pass, in bytes by kind beyond those before it."""

    times: list[Interval] = field(default_factory=list)
    operations: Counter[str] = field(default_factory=Counter)
    peak: dict[Kind, int] = field(default_factory=dict)
    peak_total: int = 0
    left: dict[Kind, int] = field(default_factory=dict)
    """The bytes that are alive after it; below 0 for those that it frees."""


@dataclass(eq=False)
class Repeating(Pipeline):
    """A pipeline whose passes are repeated, unless it `runs_all`."""

    ledger: Ledger = field(kw_only=True)
    clock: VirtualClock = field(kw_only=True)
    runs_all: bool = field(kw_only=True)
    keeps_outputs: bool = field(default=False, kw_only=True)
    """Whether what has been sent is kept until the backward of its micro-batch."""
    _sent: dict[tuple[int, int], list[Array]] = field(default_factory=dict)
    _run: set[int] = field(default_factory=set)
    _seen: dict[tuple[str, int], SeenPass] = field(default_factory=dict)
    _left: dict[tuple[int, int], Counter[Kind]] = field(default_factory=dict)
    """The bytes that the repeated passes of a micro-batch have left."""
    _held: dict[tuple[int, int], list[Any]] = field(default_factory=dict)
    """Arrays of as many."""
    _open: tuple[SeenPass, Counter[Kind], int, Counter[Kind], int] | None = None
    """The pass under way, the bytes before it, and the peaks until then."""

    def begin(self, batch: Batch) -> list[Batch]:
        parts = super().begin(batch)
        reduces = self.replica.accumulation.reduces
        self._run = {part.first for number, part in enumerate(parts)
                     if self.runs_all or number < FIRST_RUN or reduces(part)}
        return parts

    def run(self, what: str, part: Batch, chunk: int) -> None:
        if part.first not in self._run:
            self._repeat(what, part, chunk)
        elif self.runs_all:
            super().run(what, part, chunk)
        else:
            self._begin(what, chunk)
            super().run(what, part, chunk)
            self._end()

    def compute(self, what: str, part: Batch, chunk: int, given: list[Array]) -> list[Array]:
        self._sent.pop((part.first, chunk), None)
        with self._timed():
            found = super().compute(what, part, chunk, given)
        if self.keeps_outputs and what == "F":
            self._sent[part.first, chunk] = found
        return found

    def _begin(self, what: str, chunk: int) -> None:
        """Begin to note the memory of a pass."""
        seen, ledger = SeenPass(), self.ledger
        self._seen[what, chunk] = seen
        self._open = seen, Counter(ledger.now), ledger.total, ledger.peak, ledger.peak_total
        ledger.begin_peak()

    def _end(self) -> None:
        """Note the memory of the pass under way."""
        assert self._open is not None
        (seen, now, total, peak, peak_total), ledger, self._open = self._open, self.ledger, None
        seen.peak = {kind: held - now[kind] for kind, held in ledger.peak.items()}
        seen.peak_total = ledger.peak_total - total
        seen.left = {kind: held - now[kind] for kind, held in ledger.now.items()}
        ledger.peak, ledger.peak_total = ledger.peak | peak, max(ledger.peak_total, peak_total)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """Note the time and the operations of the pass under way."""
        reading, operations = self.clock.reading(), Counter(self.replica.tape.operations)
        yield
        if self._open is not None:
            self._open[0].times.append(self.clock.since(reading))
            self._open[0].operations += self.replica.tape.operations - operations

    def _repeat(self, what: str, part: Batch, chunk: int) -> None:
        """Repeat a pass, and hold what it leaves; only shapes are sent."""
        here, neighbours = self.chunks[chunk], self.neighbours
        if what == "F" and not here.first:
            neighbours.recv_activation(here.given)
        elif what == "B" and not here.last:
            neighbours.recv_gradient(here.output)
        self.passes.append(Slot(what, part.first, chunk))
        seen, key = self._seen[what, chunk], (part.first, chunk)
        for each in seen.times:
            self.clock.repeat(1, each)
        self.replica.tape.operations.update(seen.operations)
        self.ledger.pass_by(seen.peak.items(), seen.peak_total)
        left = self._left.setdefault(key, Counter())
        left.update(seen.left)
        self._held.pop(key, None)      # before arrays for what is left are allocated
        self._held[key] = [self.replica.allocate(count, np.uint8, kind=kind, owner="pipeline")
                           for kind, count in left.items() if count > 0]
        if what == "F" and not here.last:
            neighbours.send_activation(here.output)
        elif what == "B" and not here.first:
            neighbours.send_gradient(here.given)
