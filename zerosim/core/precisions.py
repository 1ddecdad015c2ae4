"""The precisions in which a model trains: plain float32 or float64, or 16-bit weights, with a float32 master copy or
alone.

DeepSpeed keeps 16-bit weights and a master copy (`train.precision = "bf16"`). FSDP2 keeps float32 shards and casts
them as they are gathered (`parallel.param_dtype = "bf16"`): the same computation, from 4 + 4 + 8 bytes of a parameter
instead of 2 + 2 + 12. `torch.autocast` keeps float32 weights and casts them for each product (`parallel.autocast`):
see `autograd/autocast.py`.

    weights    the dtype of weights, activations and gradients, and of messages unless the scenario says otherwise
    state      the dtype of the optimizer state: float32, or float64 for float64 weights
    master     a float32 copy of the weights, part of the optimizer state, and all that is updated; weights round it

16-bit numbers are for storage and for messages. Every operation of the tape widens its operands, computes in float32
and rounds its result; the optimizer works on the master copy. This gives one rule for fp16 and bf16 and needs no
table of operations that are safe in 16 bits.

`bf16_alone` is what fine-tuning in "pure" bfloat16 does: weights, gradients and optimizer state have 16 bits, and each
operation of an update rounds. Small updates vanish: weights have 8 significant bits.

float32 accumulation (`accumulate_dtype = "fp32"`) stores the 16-bit gradient as it arrived, 2Ψ, and the float32 sum,
4Ψ. In float64 the same key would round down, so it is refused there.

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
    master: bool = True
    """Whether 16-bit weights have a float32 master copy."""

    @property
    def mixed(self) -> bool:
        """Whether there is a float32 master copy of 16-bit weights."""
        return self.master and self.narrow

    @property
    def narrow(self) -> bool:
        """Whether weights have 16 bits."""
        return self.weights.itemsize < FLOAT32.itemsize

    @property
    def state(self) -> np.dtype[np.generic]:
        """The dtype of the optimizer's state."""
        return FLOAT32 if self.mixed else self.weights

    @property
    def losses(self) -> np.dtype[np.generic]:
        """The dtype of losses."""
        return FLOAT32 if self.narrow else self.weights


PRECISIONS = {
    "fp64": Precision("fp64", np.dtype(np.float64), scales_loss=False),
    "fp32": Precision("fp32", FLOAT32, scales_loss=False),
    "fp16": Precision("fp16", np.dtype(np.float16), scales_loss=True),
    "bf16": Precision("bf16", np.dtype(ml_dtypes.bfloat16), scales_loss=False),
    "bf16_alone": Precision("bf16_alone", np.dtype(ml_dtypes.bfloat16), scales_loss=False, master=False),
}

