"""The memory of one pass forward and backward in addition to model states: the tape's own code, on shapes alone.

It is the same in all stages: the micro-batches of a pass, and the arrays that backward needs of each. Nothing is
computed or allocated, so any model can be examined; operations count their work arrays as they would with numbers.

Bounds on activations and buffers were up to four times too high, so the tape itself now runs on extents under a
ledger, and every run is compared with it to the byte. The weakness: superfluous arrays that the tape keeps are on both
sides. Tests compare it with figures made by hand (s b h (32 + 2 a s / h) for a block in 16 bits, sums of arrays for
others).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
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
    """The peaks in bytes of activations, of operations' buffers, and of offloaded activations."""

    activations: int
    buffers: int
    offloaded: int


@lru_cache(maxsize=16)  # a config holds its graph: the rows of a run, not those of all runs of a program
def pass_peaks(config: Config) -> PassPeaks:
    """The peaks within a pass.

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
    """Run forward, the loss, and backward for the micro-batches of `count` passes; the tape.

    From the second pass on, the step still holds arrays of the previous one.
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
    """A micro-batch's inputs and targets; tokens and labels are small enough to be real arrays."""
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
        """Does nothing."""

    def read(self, start: int, array: Any) -> Callable[[], object]:
        return lambda: None

    def close(self) -> None:
        """Does nothing."""


def extent(shape: int | tuple[int, ...], dtype: npt.DTypeLike, *, kind: Kind, owner: str) -> Any:
    """An `Extent`: called like `allocate`, without memory."""
    return Extent(shape, dtype)


def not_added(total: Total, contribution: Any) -> Total:
    """The contribution: a gradient to which nothing is added."""
    return contribution


def nothing_drawn(*_: Any) -> None:
    """Draws nothing, since arrays have no numbers."""
