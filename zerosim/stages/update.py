"""The optimizer step of a scenario, on any stretch of a unit: the whole unit or a rank's shard.

    weights    the weights of the model, in its precision
    state      the optimizer's slots and, with 16-bit weights, `master`, the float32 weights that are updated
    start      the index in the unit at which the stretch begins
    count      the number of the update; the first is 1, and skipped steps do not count

Computing the difference is separate from applying it, because Stage I may all-gather updates instead of weights. Decay
belongs to the application, so with float32 weights both ways give the same bits, decoupled decay included.

Padding is never updated. It stays zero for every ε, so layouts, norms and checkpoints may read it.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from zerosim.core.allocation import Array
from zerosim.core.precisions import Precision
from zerosim.models.units import Unit
from zerosim.stages.optimizers import Hyperparameters, Optimizer, apply

MASTER = "master"


@dataclass(frozen=True)
class UpdateRule:
    """An optimizer with its settings, learning rates and precision."""

    optimizer: Optimizer
    hyperparameters: Hyperparameters
    precision: Precision
    decays_biases: bool = True
    schedule: str = "constant"
    warmup_steps: int = 0
    steps: int = 0

    def learning_rate(self, step: int) -> float:
        """The learning rate of step `step`, from 1: linear warm-up, then constant or half a cosine to zero.

        >>> from zerosim.core.precisions import PRECISIONS
        >>> from zerosim.stages.optimizers import OPTIMIZERS
        >>> rule = UpdateRule(OPTIMIZERS["sgd"], Hyperparameters(1.0), PRECISIONS["fp32"], True, "cosine", 2, 6)
        >>> [rule.learning_rate(step) for step in (1, 2, 4, 6)]
        [0.5, 1.0, 0.5, 0.0]
        """
        peak = self.hyperparameters.learning_rate
        if step <= self.warmup_steps:
            return peak * step / self.warmup_steps
        if self.schedule == "constant":
            return peak
        done = (step - self.warmup_steps) / (self.steps - self.warmup_steps)
        return peak * (0.5 + 0.5 * math.cos(math.pi * done))

    @property
    def slots(self) -> tuple[str, ...]:
        """The names of the state vectors, which have the length of the weights."""
        return (MASTER,) * self.precision.mixed + self.optimizer.slots

    def update(
        self, unit: Unit, start: int, weights: Array, gradient: Array, state: Mapping[str, Array],
        *, step: int, count: int, factor: float, out: Array | None = None,
    ) -> None:
        """Update the weights in place; if there is a master copy, update that and round it to the weights.

        With `out`, the weights stay as they are, and the differences to subtract from them are written there, 0 for
        padding.
        """
        updated = state.get(MASTER, weights)
        if out is not None:
            out[:] = 0
        for stretch, h in self._stretches(unit, start, len(weights), step, factor):
            slots = {slot: state[slot][stretch] for slot in self.optimizer.slots}
            self.optimizer.update(
                updated[stretch], gradient[stretch], slots, count, h, None if out is None else out[stretch],
                applies=out is None or updated is not weights)
        if out is None and updated is not weights:
            weights[:] = updated

    def of_matrices(self, unit: Unit, differences: Array, *, step: int) -> None:
        """Rewrite the differences of a whole unit's matrices, if the optimizer has a function of them."""
        h = replace(self.hyperparameters, learning_rate=self.learning_rate(step))
        for place in unit.places:
            if self.optimizer.of_matrix is not None and len(place.shape) == 2:
                self.optimizer.of_matrix(differences[place.start : place.stop].reshape(place.shape), h=h)

    def apply(self, unit: Unit, start: int, weights: Array, differences: Array, *, step: int) -> None:
        """Subtract differences from weights, after the decay of the step."""
        for stretch, h in self._stretches(unit, start, len(weights), step, 1.0):
            apply(weights[stretch], differences[stretch], self.optimizer.decay(h))

    def _stretches(
        self, unit: Unit, start: int, length: int, step: int, factor: float
    ) -> Iterator[tuple[slice, Hyperparameters]]:
        """The parts of a stretch with equal hyperparameters, without padding; one part if all parameters decay."""
        h = replace(
            self.hyperparameters, learning_rate=self.learning_rate(step), gradient_factor=factor
        )
        if self.decays_biases or not h.weight_decay:
            yield slice(0, max(min(length, unit.count - start), 0)), h
            return
        for place in unit.places:
            first = max(place.start - start, 0)
            last = min(place.stop - start, length)
            if first < last:
                yield slice(first, last), h if place.parameter.decays else replace(h, weight_decay=0.0)
