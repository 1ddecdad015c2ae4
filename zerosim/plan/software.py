"""Training software: the memory traffic and rates of its kernels, relative to those of the device.

    passes        bytes of an operation's forward and backward over those of its operands, each read or written once
    elementwise   the same ratio for all operations without matrix products that `passes` does not name
    products      the rate of matrix products over that of the device's fitted runs
    kernels       the software whose fitted rate on a device this one has, as it runs the same kernels
    copies        bytes copied per byte of gathered weights and of gradients to reduce
    update        bytes of an optimizer step over those of its operands, each read or written once
    update_bytes  bytes per parameter that an optimizer step allocates beside its operands, for all parameters at once
    attention     the generation of its attention kernels
    fuses         operations whose outputs are not in memory: an activated gate, of which one kernel also makes the
                  product; the gathered input of a product, of which the piece stays
    keeps         16-bit numbers that an operation keeps for backward, per output
    scores        bytes of each score that attention reads and writes, forward and backward; 0 if they stay on the chip
    score_keeps   bytes of each score that it keeps for backward
    in_chunks     whether products and collectives over tensor ranks run chunk by chunk, so that only the first waits
    ahead         whether gradients are reduced beside all of backward, and weights gathered beside the next forward
    loss          `whole`: all scores of the vocabulary are widened at once; `compiled`: one kernel forward and one
                  backward keep the widened scores in registers; `chunked`: scores are computed in chunks
    keeps_outputs whether a rank of a pipeline keeps what it has sent until the backward of the micro-batch
    apart         memory for which no freed activation is large enough: a share of the optimizer's state, a share of the
                  weights, and bytes of a bucket
    joins_data    whether context and expert ranks share the states of a weight with data ranks, see `sharing`
    launches      kernels that the host launches in a layer of experts forward and backward while the device waits,
                  because their sizes are the numbers of tokens of each expert, which the host reads first
    once_a_host   whether a token leaves a host once for all experts of another, not once for each
    overlapped    the share of the experts' all-to-alls that run beside the computation of another micro-batch
    reserve       the memory that the allocator holds beyond live arrays at the peak, as a share of them

PyTorch without a compiler runs one kernel after another. Its own kernels for LayerNorm or GELU are one each; a norm or
a rotary position that a model's code spells out is many kernels, in 32 bits. Their passes are counted in that code,
not fitted.
"""

from dataclasses import dataclass, field

WHOLE_SCORES = 8.0
"""Bytes per score that a 32-bit loss holds beside the score and its gradient: the widened score and its logarithm."""


@dataclass(frozen=True)
class Software:
    """The numbers of one training software; the default is the software of the device's fitted runs.

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
    fuses: tuple[str, ...] = ()
    keeps: dict[str, float] = field(default_factory=dict)
    scores: tuple[float, float] = (0.0, 0.0)
    score_keeps: float = 0.0
    in_chunks: bool = False
    ahead: bool = False
    loss: str = ""
    keeps_outputs: bool = False
    apart: tuple[float, float, float] = (0.0, 0.0, 0.0)
    joins_data: bool = False
    launches: tuple[float, float] = (0.0, 0.0)
    once_a_host: bool = False
    overlapped: float = 0.0
    reserve: float = 0.0

    def moved(self, operation: str, way: str, *, multiplies: bool) -> float:
        """The factor on the bytes that an operation reads and writes."""
        if operation in self.passes:
            return self.passes[operation][way == "backward"]
        return 1.0 if multiplies else self.elementwise
