"""The software that trains: what its kernels read, write and reach beside what a device could do.

    passes        bytes of an operation's forward and backward over those of its operands, each read or written once
    elementwise   the same of all operations without matrix products that `passes` does not name
    products      what products reach over what they reach on the device's fitted runs
    copies        bytes that are copied for each parameter that is gathered, and for each gradient that is reduced
    update        bytes of an optimizer's step over those of its operands, each read or written once
    update_bytes  bytes of each parameter that an optimizer's step has beside its operands, for all parameters at once
    attention     the generation of its attention kernels
    keeps         16-bit numbers that an operation keeps for backward, for each of its outputs
    loss          `whole`: all scores of the vocabulary are widened at once; `compiled`: one kernel forward and one
                  backward keep what is widened in registers; `chunked`: scores come in chunks, and none are ever whole
    reserve       what the allocator holds beyond what is alive at the peak, as a share of that

PyTorch without a compiler carries out one kernel after another. Its own kernels for LayerNorm or GELU are one each; a
norm or a rotary position that a model's code spells out is many, and in 32 bits. Their passes are counted in that
code, not fitted.
"""

from dataclasses import dataclass, field

WHOLE_SCORES = 8.0
"""Bytes of a score that a loss in 32 bits has beside the score and its gradient: the score widened, and its logarithm.
"""


@dataclass(frozen=True)
class Software:
    """What a plan asks of software; without any, that of the runs to which devices are fitted.

    >>> Software(passes={"rms_norm": (9, 13)}, elementwise=0.5).moved("rms_norm", "backward", multiplies=False)
    13
    """

    title: str = "as on the device's fitted runs"
    passes: dict[str, tuple[float, float]] = field(default_factory=dict)
    elementwise: float = 1.0
    products: float = 1.0
    copies: float = 0.0
    update: float = 1.0
    update_bytes: float = 0.0
    attention: str = ""
    keeps: dict[str, float] = field(default_factory=dict)
    loss: str = ""
    reserve: float = 0.0

    @property
    def score_bytes(self) -> float:
        """Bytes of each score of the vocabulary in the loss, beside 2 of the score and 4 of its gradient."""
        return WHOLE_SCORES if self.loss == "whole" else 0.0

    def moved(self, operation: str, way: str, *, multiplies: bool) -> float:
        """The factor on what an operation reads and writes."""
        if operation in self.passes:
            return self.passes[operation][way == "backward"]
        return 1.0 if multiplies else self.elementwise
