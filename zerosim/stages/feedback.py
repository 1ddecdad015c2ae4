"""Error feedback: the quantisation error of a gradient is added to the next gradient before quantisation.

    residual    the error of the last encoding on a rank, per element of a unit; float32, full length

A rank sends v = value + residual as codes, and keeps v minus the decoded codes. So the sum of all sent gradients is
off by the error of one step only, however many steps there are. If that difference is not finite, the residual is 0.

A skipped step leaves residuals unchanged, because its gradients were not used. Residuals are in units of the loss
scale and are rescaled with it. If steps may be skipped, a second copy holds the residuals before the step.

A reduce-scatter encodes each chunk at most once on each rank, so one array per unit is enough. The ledger counts it as
optimizer state, as DeepSpeed's 1-bit Adam does with `worker_error`.

Sources: Seide et al., "1-bit stochastic gradient descent and its application to data-parallel distributed training of
speech DNNs" (2014), section 3; Karimireddy et al., "Error feedback fixes SignSGD and other gradient compression
schemes" (2019), algorithm 2.
"""

from dataclasses import dataclass, field

import numpy as np

from zerosim.allocation import Allocator, Array
from zerosim.models.units import Unit

RESIDUAL = " residual"
"""The suffix of a unit's name for its residual in the ledger."""


@dataclass
class Residuals:
    """A rank's residuals by unit: the present ones (`now`), and those after the last step that was settled (`settled`).

    `copies` is the number of these that are kept: two if a step may be skipped, none without error feedback.

    >>> from zerosim.allocation import allocate
    >>> from zerosim.models.mlp import mlp
    >>> unit, residuals = mlp(1, [], 1, "relu", "cross_entropy").units[0], Residuals(copies=2)
    >>> residuals.begin(unit, 2, allocate)
    >>> residuals.now[unit] += 3
    >>> residuals.settle(used=False, rescaled=0.5)
    >>> residuals.now[unit].tolist()
    [0.0, 0.0]
    """

    copies: int = 0
    now: dict[Unit, Array] = field(default_factory=dict)
    settled: dict[Unit, Array] = field(default_factory=dict)

    def begin(self, unit: Unit, length: int, allocate: Allocator) -> None:
        """Allocate zeros of a unit's full, padded length."""
        for kept in (self.now, self.settled)[: self.copies]:
            kept[unit] = allocate(length, np.float32, kind="optimizer", owner=unit.name + RESIDUAL)
            kept[unit][:] = 0

    def settle(self, *, used: bool, rescaled: float) -> None:
        """End a step: drop its residuals unless its gradients were `used`; multiply all by `rescaled`."""
        for unit, settled in self.settled.items():
            now = self.now[unit]
            if not used:
                now[:] = settled
            now *= np.float32(rescaled)
            settled[:] = now

    def clear(self) -> None:
        """Free all residuals."""
        self.now.clear()
        self.settled.clear()
