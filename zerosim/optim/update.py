"""The optimizer step of a scenario, on any stretch of a unit: the whole unit or a rank's shard.

    weights    what the model computes with, in its precision
    state      the optimizer's slots and, with 16-bit weights, `master`, the float32 weights that are really updated
    delayed    a slot for the gradient of the step before, where each step applies that one's update
    start      where in the unit the stretch begins
    count      which update this is; the first is 1, and skipped steps do not count

Computing the difference is separate from applying it, because Stage I may all-gather updates instead of weights.
Decay belongs to the application, so with float32 weights both ways leave the same bits, decoupled decay included.

Padding is never updated. It stays zero whatever ε is, so layouts, norms and checkpoints may read it.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from zerosim.allocation import Array
from zerosim.models.units import Unit
from zerosim.numerics.not_a_number import with_one_nan
from zerosim.numerics.precisions import Precision
from zerosim.optim.optimizers import Hyperparameters, Optimizer, apply

MASTER, DELAYED = "master", "delayed gradient"


@dataclass(frozen=True)
class LearningRate:
    """The learning rate of each step: linear warm-up, then constant or half a cosine down to zero."""

    peak: float
    shape: str = "constant"
    warmup_steps: int = 0
    steps: int = 0

    def learning_rate(self, step: int) -> float:
        """The learning rate of step `step`; the first step is 1.

        >>> [LearningRate(1.0, "cosine", warmup_steps=2, steps=6).learning_rate(step) for step in (1, 2, 4, 6)]
        [0.5, 1.0, 0.5, 0.0]
        """
        if step <= self.warmup_steps:
            return self.peak * step / self.warmup_steps
        if self.shape == "constant":
            return self.peak
        done = (step - self.warmup_steps) / (self.steps - self.warmup_steps)
        return self.peak * (0.5 + 0.5 * math.cos(math.pi * done))


class WeightUpdates(Protocol):
    """How weights are updated, in place or by differences to be applied: `UpdateRule`, or what takes its place."""

    @property
    def slots(self) -> tuple[str, ...]: ...
    @property
    def precision(self) -> Precision: ...
    def update(
        self, unit: Unit, start: int, weights: Array, gradient: Array, state: Mapping[str, Array],
        *, step: int, count: int, factor: float,
    ) -> None: ...
    def differences(
        self, unit: Unit, start: int, weights: Array, gradient: Array, state: Mapping[str, Array],
        *, step: int, count: int, factor: float, out: Array,
    ) -> None: ...
    def apply(self, unit: Unit, start: int, weights: Array, differences: Array, *, step: int) -> None: ...


def delay(kept: Array, gradient: Array, factor: float) -> None:
    """Keep a gradient for the next step, as an update would read it: multiplied by `factor`, any NaN the one there is.

    >>> kept = np.zeros(2, np.float32)
    >>> delay(kept, np.array([1.0, np.nan], np.float16), 0.5)
    >>> kept
    array([0.5, nan], dtype=float32)
    """
    kept[:] = gradient
    if factor != 1.0:
        kept *= factor
    if np.isnan(np.dot(kept, kept)):
        with_one_nan(kept)


@dataclass(frozen=True)
class UpdateRule:
    """The rule by which weights are updated: the optimizer, its settings, and in which precision."""

    optimizer: Optimizer
    hyperparameters: Hyperparameters
    schedule: LearningRate
    precision: Precision
    decays_biases: bool = True
    delayed: bool = False

    @property
    def slots(self) -> tuple[str, ...]:
        """The names of the state: vectors as long as the weights."""
        return (MASTER,) * self.precision.mixed + self.optimizer.slots + (DELAYED,) * self.delayed

    def update(
        self, unit: Unit, start: int, weights: Array, gradient: Array, state: Mapping[str, Array],
        *, step: int, count: int, factor: float,
    ) -> None:
        """Update the weights in place, or the master copy if there is one, which the weights then round."""
        updated = state.get(MASTER, weights)
        for stretch, h in self._stretches(unit, start, len(weights), step, factor):
            slots = {slot: state[slot][stretch] for slot in self.optimizer.slots}
            self.optimizer.update(updated[stretch], gradient[stretch], slots, count, h)
        if updated is not weights:
            weights[:] = updated

    def differences(
        self, unit: Unit, start: int, weights: Array, gradient: Array, state: Mapping[str, Array],
        *, step: int, count: int, factor: float, out: Array,
    ) -> None:
        """Leave in `out` what is to be subtracted from the weights; the master copy, if any, is updated with it.

        Nothing is to be subtracted from padding.
        """
        out[:] = 0
        updated = state.get(MASTER, weights)
        for stretch, h in self._stretches(unit, start, len(weights), step, factor):
            slots = {slot: state[slot][stretch] for slot in self.optimizer.slots}
            for piece, exact in self.optimizer.differences(updated[stretch], gradient[stretch], slots, count, h):
                if updated is not weights:
                    apply(updated[stretch][piece], exact, self.optimizer.decay(h))
                out[stretch][piece] = exact

    def delay(self, kept: Array, gradient: Array, factor: float) -> None:
        """Keep a gradient for the next step; see `delay`."""
        delay(kept, gradient, factor)

    def apply(self, unit: Unit, start: int, weights: Array, differences: Array, *, step: int) -> None:
        """Subtract differences from weights, after the decay that belongs to the step."""
        for stretch, h in self._stretches(unit, start, len(weights), step, 1.0):
            apply(weights[stretch], differences[stretch], self.optimizer.decay(h))

    def _stretches(
        self, unit: Unit, start: int, length: int, step: int, factor: float
    ) -> Iterator[tuple[slice, Hyperparameters]]:
        """The parts of a stretch that share hyperparameters, without padding: all of it, unless some do not decay."""
        h = replace(
            self.hyperparameters, learning_rate=self.schedule.learning_rate(step), gradient_factor=factor
        )
        if self.decays_biases or not h.weight_decay:
            yield slice(0, max(min(length, unit.count - start), 0)), h
            return
        for place in unit.places:
            first = max(place.start - start, 0)
            last = min(place.stop - start, length)
            if first < last:
                yield slice(first, last), h if place.parameter.decays else replace(h, weight_decay=0.0)
