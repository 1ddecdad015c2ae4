"""Error feedback: what quantisation has lost of a gradient is added to what is quantised next.

    residual    of a rank and a unit: for each element the loss of its last encoding there, float32, full length

A rank sends v = value + residual as codes, and keeps v − what arrives. So what arrives over all steps is off by one
step's loss alone, however many steps there are. Where that is not finite the residual is 0.

A step that is skipped leaves residuals as they were before it, because nobody has used what it sent. They are in units
of the loss scale, and follow it. Where steps may be skipped, a second copy has them as they were.

A reduce-scatter encodes each chunk at most once on each rank, so one array is enough for a unit. The ledger has it with
the optimizer state, as DeepSpeed's 1-bit Adam has its `worker_error`.

Sources: Seide et al., "1-bit stochastic gradient descent and its application to data-parallel distributed training of
speech DNNs" (2014), section 3; Karimireddy et al., "Error feedback fixes SignSGD and other gradient compression
schemes" (2019), algorithm 2.
"""

from dataclasses import dataclass, field

import numpy as np

from zerosim.allocation import Allocator, Array
from zerosim.models.units import Unit

RESIDUAL = " residual"
"""What stands behind a unit's name where the ledger has its residual."""


@dataclass
class Residuals:
    """A rank's residuals, by unit, as they are `now` and as they were when they were last `settled`.

    `copies` says how many of the two are kept: both where a step may be skipped, none without error feedback.

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
        """Zeros for a unit's full, padded length."""
        for kept in (self.now, self.settled)[: self.copies]:
            kept[unit] = allocate(length, np.float32, kind="optimizer", owner=unit.name + RESIDUAL)
            kept[unit][:] = 0

    def settle(self, *, used: bool, rescaled: float) -> None:
        """End a step: its losses count if its gradients were `used`; the loss scale is `rescaled` times what it was."""
        for unit, settled in self.settled.items():
            now = self.now[unit]
            if not used:
                now[:] = settled
            now *= np.float32(rescaled)
            settled[:] = now

    def clear(self) -> None:
        """Let go of all."""
        self.now.clear()
        self.settled.clear()
