"""What one pass forward and backward has alive beside model states: a tape's own steps, on shapes alone.

All stages have the same: the micro-batches that go together, and of each what backward needs. Nothing is computed and
no memory is taken, so this can be asked of any model; operations count their own work as they would with numbers.

Bounds on activations and buffers were up to four times too high, so the tape itself now runs on extents under a
ledger, and every run is held to the byte. The weakness: what the tape keeps too much is on both sides. Tests compare
it with figures made by hand (s b h (32 + 2 a s / h) for a block in 16 bits, sums of arrays for others).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from zerosim.allocation import Allocator, Kind
from zerosim.autograd.shelf import Offloaded
from zerosim.autograd.tape import Tape, Total
from zerosim.formulas.segments import SeenSegments
from zerosim.instruments.memory import Ledger
from zerosim.instruments.observed import ObservedAllocator
from zerosim.payloads.extents import Extent
from zerosim.training.config import Config


@dataclass(frozen=True)
class PassPeaks:
    """The most bytes of activations, of what operations have as buffers, and of what is offloaded."""

    activations: int
    buffers: int
    offloaded: int


@cache
def pass_peaks(config: Config) -> PassPeaks:
    """The most bytes of each that there are within a pass.

    >>> from zerosim.models.units import Task
    >>> from zerosim.scenario.schema import Scenario
    >>> from zerosim.training.config import configured
    >>> row, *_ = Scenario().rows                                # 64-64-64-10, 16 samples at a time
    >>> pass_peaks(configured(row, Task(64, 10, "cross_entropy"))).activations
    13568
    """
    ledger = Ledger()
    tape = run_passes(config, ObservedAllocator(extent, ledger), SeenSegments(ledger.pass_by), min(config.passes, 2))
    return PassPeaks(ledger.peak["activations"], ledger.peak["buffers"], tape.shelf.most_bytes)


def run_passes(config: Config, allocate: Allocator, segments: SeenSegments, count: int) -> Tape:
    """Forward, the loss, and backward of as many micro-batches as go together; the tape that has run them.

    Of several such passes the second finds what the step still has of the first, and so does each one after it.
    """
    model = config.model
    weights: dict[Any, Any] = {unit: Extent(unit.count, config.computing.weights) for unit in model.units}
    shelf = Offloaded(Nowhere(), allocate) if config.row.parallel.offload_activations else None
    tape = Tape(
        allocate, not_added, model.lowest_trained, nothing_drawn, config.recomputed, shelf,
        players=segments.player, output_dtype=config.outputs, keeps=config.row.parallel.recompute_keeps,
        policy=config.policy,
    )
    inputs, targets = batch(config)
    for _ in range(count):
        activations = [inputs] * config.at_once
        for unit in model.forward_units:
            activations = tape.forward(unit, weights[unit], activations)
        _, upstreams = tape.loss(model.loss, activations, [targets] * config.at_once, config.samples)
        for unit in model.backward_units:
            tape.recompute(unit, weights[unit])
            upstreams, _ = tape.backward(unit, weights[unit], upstreams)
    return tape


def operations(config: Config) -> dict[str, int]:
    """Floating-point operations of matrix products on a rank in a run's steps: forward, backward and recomputation."""
    in_a_pass = run_passes(config, extent, SeenSegments(), 1).operations
    passes = config.passes * config.steps_here
    return {what: in_a_pass[what] * passes for what in ("forward", "backward", "recomputation")}


def batch(config: Config) -> tuple[Any, Any]:
    """A micro-batch's inputs and targets: tokens and labels are small enough to be there."""
    samples, task = config.row.train.micro_batch, config.model.task
    shape = (samples, task.inputs)
    if task.tokens:
        return np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    targets: Any = np.zeros(samples, np.int64)
    if task.loss == "mean_squared_error":
        targets = Extent((samples, task.outputs), np.float32)
    return Extent(shape, config.computing.weights), targets


class Nowhere:
    """A store for arrays without numbers."""

    def write(self, start: int, array: Any) -> None:
        """Nothing to write."""

    def read(self, start: int, array: Any) -> Callable[[], object]:
        return lambda: None

    def close(self) -> None:
        """Nothing to close."""


def extent(shape: int | tuple[int, ...], dtype: npt.DTypeLike, *, kind: Kind, owner: str) -> Any:
    """An `Extent`: allocates as `allocate` does, without memory."""
    return Extent(shape, dtype)


def not_added(total: Total, contribution: Any) -> Total:
    """The contribution: what is added to it is a gradient."""
    return contribution


def nothing_drawn(*_: Any) -> None:
    """Numbers that do not exist are not random either."""
