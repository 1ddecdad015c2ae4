"""One factor for all gradients of a step, which undoes the loss scale and clips by the global norm.

    norm         √ Σ g², over all parameters; partial sums of squares are float64, one for each chunk of each unit, and
                 are added unit by unit, chunk by chunk, so that every stage and the reference get the same bits
    loss scale   the factor of the loss before backward, a power of two; if dynamic, it halves when a gradient
                 overflows, that step is skipped, and it doubles after 2,000 steps without overflow; it does not fall
                 below 2⁻²⁴, where steps that overflow are still skipped

Gradients themselves are not changed; the optimizer multiplies by the factor. All ranks have the same sums
(`square_sums.py`), so they agree without another message whether to skip a step.

A doubt: chunks depend on the number of ranks, so with clipping the bits do too, even in the orders `tree` and `exact`.

Sources: Pascanu, Mikolov and Bengio, "On the difficulty of training recurrent neural networks" (2013), section 3.2,
with the constants of `torch.nn.utils.clip_grad_norm_`; Micikevicius et al., "Mixed precision training" (2018), section
3.2, with the constants of `torch.amp.GradScaler`, which has no lowest scale and may halve to 0. Here the lowest scale
is the smallest positive float16: a loss gradient of 1 times this scale is still that number, and half of it would
round to 0. A lower scale would not save such gradients but erase them.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from zerosim.core.allocation import Array
from zerosim.models.parameters import Coordinates
from zerosim.models.units import Unit
from zerosim.stages.optimizers import PIECE

INITIAL_SCALE = 2.0**16
LOWEST_SCALE = 2.0**-24
STEPS_TO_GROW = 2000
EPSILON = 1e-6


def square_sum(chunk: Array) -> float:
    """Σ x² of a chunk in float64, piece by piece, left to right.

    >>> square_sum(np.array([3.0, 4.0], np.float16))
    25.0
    """
    total = 0.0
    for start in range(0, len(chunk), PIECE):
        total += float(np.sum(np.square(chunk[start : start + PIECE].astype(np.float64))))
    return total


def counted_square_sum(unit: Unit, start: int, values: Array, coordinates: Coordinates) -> float:
    """Σ x² of the elements of a unit from `start` on for which a place answers, where each is counted once."""
    if not any(coordinates.values()):
        return square_sum(values)
    stretches = ((max(place.start - start, 0), max(place.stop - start, 0)) for place in unit.places
                 if place.parameter.answers(coordinates))
    return float(sum(square_sum(values[first:last]) for first, last in stretches))


@dataclass
class Scaling:
    """The loss scale, and the norm for clipping (0: no clipping), before a step."""

    loss_scale: float = 1.0
    dynamic: bool = False
    clip_norm: float = 0.0
    good_steps: int = 0

    @property
    def needs_norm(self) -> bool:
        """Whether a step needs the norm of its gradients."""
        return self.dynamic or self.clip_norm > 0

    def factor(self, square_sums: Iterable[float]) -> float | None:
        """The factor of the gradients from their partial sums of squares; None if the step is skipped.

        >>> Scaling(clip_norm=1.0).factor([9.0, 16.0])
        0.199999960000008
        >>> scaling = Scaling(loss_scale=4.0, dynamic=True)
        >>> scaling.factor([math.inf]), scaling.loss_scale, scaling.factor([1.0])
        (None, 2.0, 0.5)
        """
        factor = 1.0 / self.loss_scale
        if not self.needs_norm:
            return factor
        total = 0.0
        for part in square_sums:
            total += part
        if self.dynamic and not math.isfinite(total):
            self.loss_scale = max(self.loss_scale / 2.0, LOWEST_SCALE)
            self.good_steps = 0
            return None
        if self.clip_norm:
            norm = math.sqrt(total) * factor
            factor *= min(1.0, self.clip_norm / (norm + EPSILON))
        self.good_steps += self.dynamic
        if self.good_steps == STEPS_TO_GROW:
            self.loss_scale *= 2.0
            self.good_steps = 0
        return factor
