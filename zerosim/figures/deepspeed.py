"""DeepSpeed's estimates of the memory of model states, which count differently from the ZeRO paper.

    Ψ   parameters of the model, N data-parallel ranks
    L   parameters of the largest layer

    Stage II    2Ψ + 18Ψ/N    18 = 2 fp16 gradient + 4 fp32 gradient + 12 optimizer
    Stage III   4L + 18Ψ/N    18 = 2 fp16 weight + 4 fp32 gradient + 12 optimizer
                               4 = 2 fp16 weight + 2 fp16 gradient

They are for mixed precision and Adam, without offloading, and for Stages II and III alone.
DeepSpeed itself drops fractions of a byte.

Source: `estimate_zero2_model_states_mem_needs` and `estimate_zero3_model_states_mem_needs` in
DeepSpeed, and "Memory Requirements" in its documentation.
"""

from fractions import Fraction

from zerosim.figures.memory import ModelStates

FORMULAS = {"zero2": "2Ψ + 18Ψ/N", "zero3": "4L + 18Ψ/N"}

DIFFERENCES = (
    "DeepSpeed counts gradients in fp32 too, 4Ψ/N, since it converts them before an update. In Stage II they come on "
    "top of the paper's 2Ψ + 14Ψ/N.",
    "In Stage III they stand in place of the fp16 gradients, 2Ψ/N, in the paper's 16Ψ/N. Weights and gradients of the "
    "largest layer, whole and in fp16, are the 4L: so this is a peak, while the paper counts what rests between steps.",
)


def zero2(parameters: int, ranks: int) -> ModelStates:
    """Bytes on every rank, exact.

    >>> int(zero2(2_851_000_000, 8).total)
    12116750000
    """
    shard = Fraction(parameters, ranks)
    return ModelStates(Fraction(2 * parameters), (2 + 4) * shard, 12 * shard)


def zero3(parameters: int, ranks: int, largest_layer: int) -> ModelStates:
    """Bytes on every rank at the peak, while the largest layer is computed, exact.

    >>> int(zero3(2_851_000_000, 8, 32_000_000).total)
    6542750000
    """
    shard = Fraction(parameters, ranks)
    return ModelStates(2 * shard + 2 * largest_layer, 4 * shard + 2 * largest_layer, 12 * shard)
