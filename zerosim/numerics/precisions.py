"""In which numbers a model trains: plain float32 or float64, or 16-bit weights beside a float32 master copy.

    weights    of weights, activations and gradients, and of the wire unless it is told otherwise
    state      of the optimizer: float32, or float64 beside weights of as many bits
    master     a float32 copy of the weights, part of the optimizer state, and all that is updated; weights round it

Source: Micikevicius et al., "Mixed precision training" (2018), section 3; as the ZeRO paper counts it, 2Ψ + 2Ψ + 12Ψ.
"""

from dataclasses import dataclass

import ml_dtypes
import numpy as np

FLOAT32 = np.dtype(np.float32)


@dataclass(frozen=True)
class Precision:
    """The dtype of weights, and whether its range is so small that losses are scaled."""

    name: str
    weights: np.dtype[np.generic]
    scales_loss: bool

    @property
    def mixed(self) -> bool:
        """Whether there is a float32 master copy of 16-bit weights."""
        return self.weights.itemsize < FLOAT32.itemsize

    @property
    def state(self) -> np.dtype[np.generic]:
        """The dtype of the optimizer's state, and of losses."""
        return FLOAT32 if self.mixed else self.weights


PRECISIONS = {
    "fp64": Precision("fp64", np.dtype(np.float64), scales_loss=False),
    "fp32": Precision("fp32", FLOAT32, scales_loss=False),
    "fp16": Precision("fp16", np.dtype(np.float16), scales_loss=True),
    "bf16": Precision("bf16", np.dtype(ml_dtypes.bfloat16), scales_loss=False),
}

