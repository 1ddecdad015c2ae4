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

from zerosim.allocation import Array, Kind
from zerosim.autograd.tape import Total
from zerosim.instruments.memory import Ledger
from zerosim.plan.clock import Interval, VirtualClock
from zerosim.stages.pipeline import Pipeline, Slot
from zerosim.stages.replica import Batch

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

    def receive_activation(self, part: Batch, chunk: int = 0) -> list[Array]:
        if self._begins("F", part, chunk):
            return super().receive_activation(part, chunk)
        if not self.chunks[chunk].first:
            self.neighbours.recv_activation(self.chunks[chunk].given)
        return []

    def forward(self, part: Batch, activations: list[Array], chunk: int = 0) -> list[Array]:
        if part.first in self._run:
            with self._timed():
                return super().forward(part, activations, chunk)
        self._repeat("F", part, chunk)
        return []

    def send_activation(self, part: Batch, activations: list[Array], chunk: int = 0) -> None:
        if self.keeps_outputs:
            self._sent[part.first, chunk] = activations
        if part.first in self._run:
            super().send_activation(part, activations, chunk)
        elif not self.chunks[chunk].last:
            self.neighbours.send_activation(self.chunks[chunk].output)

    def receive_gradient(self, part: Batch, chunk: int = 0) -> list[Array]:
        here = self.chunks[chunk]
        if self._begins("B", part, chunk):
            if not here.last:
                return super().receive_gradient(part, chunk)
            with self._timed():
                return super().receive_gradient(part, chunk)
        if not here.last:
            self.neighbours.recv_gradient(here.output)
        return []

    def backward(self, part: Batch, upstream: list[Array], chunk: int = 0) -> list[Array]:
        self._sent.pop((part.first, chunk), None)
        if part.first in self._run:
            with self._timed():
                return super().backward(part, upstream, chunk)
        self._repeat("B", part, chunk)
        return []

    def backward_input(self, part: Batch, upstream: list[Array], chunk: int = 0) -> list[Array]:
        self._sent.pop((part.first, chunk), None)
        if part.first in self._run:
            with self._timed():
                return super().backward_input(part, upstream, chunk)
        self._repeat("B", part, chunk)
        return []

    def backward_weights(self, part: Batch, chunk: int = 0) -> None:
        if self._begins("W", part, chunk):
            with self._timed():
                super().backward_weights(part, chunk)
        else:
            self._repeat("W", part, chunk)

    def send_gradient(self, part: Batch, upstream: list[Array], chunk: int = 0) -> None:
        if part.first in self._run:
            super().send_gradient(part, upstream, chunk)
        elif not self.chunks[chunk].first:
            self.neighbours.send_gradient(self.chunks[chunk].given)

    def update(self) -> Total:
        self._end()
        return super().update()

    def _begins(self, what: str, part: Batch, chunk: int) -> bool:
        """Whether the pass of a micro-batch is run, which then begins; the pass before it has ended."""
        self._end()
        if part.first in self._run and not self.runs_all:
            seen, ledger = SeenPass(), self.ledger
            self._seen[what, chunk] = seen
            self._open = seen, Counter(ledger.now), ledger.total, ledger.peak, ledger.peak_total
            ledger.begin_peak()
        return part.first in self._run

    def _end(self) -> None:
        """Note the memory of the pass under way, if there is one."""
        if self._open is None:
            return
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
        """Repeat a pass, and hold what it leaves."""
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
