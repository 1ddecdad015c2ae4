"""Stragglers: ranks that are slower in one step or in all, and the time of a step that waits for the slowest.

    jitter       standard deviation of the logarithm of a rank's computing time, drawn again for each rank and step
    slow ranks   a share of all ranks, drawn once, that compute longer by `slow_by` in every step

All ranks wait for each other in each step, so a step computes as long as its slowest rank; exposed communication does
not change. The delays of a rank within a step are assumed to occur together. If they occurred unit by unit, with a
wait for all ranks in each unit, steps would take longer at the same deviation per rank.

The slowest of n equal ranks is drawn directly: its quantile is the n-th root of a uniform number. So a hundred
thousand ranks take no longer than one. All draws use one seed.
"""

from dataclasses import dataclass
from math import exp
from statistics import NormalDist

import numpy as np

from zerosim.core.allocation import Array

STEPS = 2_000
"""The number of steps drawn."""
LEAST = 1e-12
"""The least distance of a quantile from 0 and 1."""


@dataclass(frozen=True)
class Stragglers:
    """The unevenness of ranks; none by default.

    >>> Stragglers(jitter=0.02).factors(1024).shape
    (2000,)
    >>> float(Stragglers(slow_share=1.0, slow_by=0.5).factors(8).max())
    1.5
    """

    jitter: float = 0.0
    slow_share: float = 0.0
    slow_by: float = 0.0
    seed: int = 0

    @property
    def any(self) -> bool:
        """Whether ranks are uneven."""
        return bool(self.jitter or (self.slow_share and self.slow_by))

    def factors(self, ranks: int) -> Array:
        """The computing time of the slowest rank relative to an even rank, in each of `STEPS` steps."""
        draw = np.random.default_rng(self.seed)
        slow = int(draw.binomial(ranks, self.slow_share))
        found = np.zeros(STEPS)
        for count, factor in ((ranks - slow, 1.0), (slow, 1.0 + self.slow_by)):
            quantiles = draw.random(STEPS)
            if count:
                found = np.maximum(found, factor * self._slowest(quantiles ** (1 / count)))
        return found

    def _slowest(self, quantiles: Array) -> Array:
        """The computing time at each quantile for ranks with a median of 1."""
        if not self.jitter:
            return np.ones(len(quantiles))
        normal = NormalDist(0.0, self.jitter).inv_cdf
        return np.array([exp(normal(each)) for each in np.clip(quantiles, LEAST, 1 - LEAST)])


@dataclass(frozen=True)
class UnevenSteps:
    """Seconds of a step with uneven ranks: the mean, the median and the 95th percentile."""

    mean: float
    p50: float
    p95: float


def uneven_steps(stragglers: Stragglers, ranks: int, computing_seconds: float, step_seconds: float) -> UnevenSteps:
    """The times of a step that takes `step_seconds` on even ranks, `computing_seconds` of it for computation."""
    steps = step_seconds + computing_seconds * (stragglers.factors(ranks) - 1)
    p50, p95 = np.quantile(steps, [0.5, 0.95])
    return UnevenSteps(float(steps.mean()), float(p50), float(p95))
