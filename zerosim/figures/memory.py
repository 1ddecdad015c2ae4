"""Memory of model states by formula: the bytes that each rank keeps between steps.

    Ψ   parameters of the model             N   data-parallel ranks
    K   optimizer bytes per parameter       (12 for Adam in mixed precision)

                parameters   gradients   optimizer   sum for 2 + 2 + 12 bytes
    DDP         2Ψ           2Ψ          KΨ          16Ψ
    Stage I     2Ψ           2Ψ          KΨ/N        4Ψ + 12Ψ/N
    Stage II    2Ψ           2Ψ/N        KΨ/N        2Ψ + 14Ψ/N
    Stage III   2Ψ/N         2Ψ/N        KΨ/N        16Ψ/N

During a step more is alive: activations in every stage, one unit's full gradient in Stages
II and III, and one unit's full parameters in Stage III.

Source: Rajbhandari, Rasley, Ruwase and He, "ZeRO: memory optimizations toward training trillion
parameter models" (2020), sections 3.1 and 5.
"""

from dataclasses import dataclass
from fractions import Fraction

from zerosim.allocation import Kind
from zerosim.numerics import precisions
from zerosim.optim.optimizers import OPTIMIZERS
from zerosim.stages import STAGES

PRECISIONS = {"mixed": precisions.PRECISIONS["bf16"], "fp32": precisions.PRECISIONS["fp32"]}
FP32_BYTES = precisions.FLOAT32.itemsize


def optimizer_bytes(precision: str, optimizer: str) -> int:
    """K: the master copy, if there is one, and an fp32 number for each slot of the optimizer.

    >>> optimizer_bytes("mixed", "adam"), optimizer_bytes("fp32", "adam")
    (12, 8)
    """
    return FP32_BYTES * (PRECISIONS[precision].mixed + len(OPTIMIZERS[optimizer].slots))


@dataclass(frozen=True)
class ModelStates:
    """Bytes of each kind of model state, for one parameter or on one rank, as exact fractions."""

    parameters: Fraction
    gradients: Fraction
    optimizer: Fraction

    @property
    def total(self) -> Fraction:
        """The sum of all three kinds."""
        return self.parameters + self.gradients + self.optimizer


def per_parameter(precision: str, k: int, *, fp32_accumulation: bool = False) -> ModelStates:
    """Bytes of model states for each parameter, before any sharding.

    `k` is the optimizer's share, see `optimizer_bytes`. With `fp32_accumulation`, an fp32 sum of gradients is kept in
    addition to the gradients, and sharded like them.

    >>> int(per_parameter("mixed", 12).total)
    16
    >>> int(per_parameter("mixed", 12, fp32_accumulation=True).total)
    20
    """
    each = PRECISIONS[precision].weights.itemsize
    return ModelStates(Fraction(each), Fraction(each + FP32_BYTES * fp32_accumulation), Fraction(k))


def resting(stage: str, parameters: int, ranks: int, each: ModelStates) -> ModelStates:
    """Bytes on every rank between steps, with shards of exactly 1/N: the paper's figures.

    `each` has the bytes of one parameter.

    >>> float(resting("zero1", 7_500_000_000, 64, per_parameter("mixed", 12)).total)
    31406250000.0
    """

    def held(kind: Kind, bytes_each: Fraction) -> Fraction:
        return parameters * bytes_each / (ranks if kind in STAGES[stage].sharded else 1)

    return ModelStates(
        parameters=held("parameters", each.parameters),
        gradients=held("gradients", each.gradients),
        optimizer=held("optimizer", each.optimizer),
    )


def largest_model(stage: str, budget_bytes: int, ranks: int, each: ModelStates) -> int:
    """The most parameters whose model states fit into `budget_bytes` on every rank.

    >>> largest_model("zero3", 32_000_000_000, 64, per_parameter("mixed", 12))
    128000000000
    """
    return budget_bytes // resting(stage, 1, ranks, each).total


def formula(stage: str, each: ModelStates) -> str:
    """The sum that a rank keeps, as a formula in Ψ and N.

    >>> [formula(stage, per_parameter("mixed", 12)) for stage in ("ddp", "zero1", "zero2", "zero3")]
    ['16Ψ', '4Ψ + 12Ψ/N', '2Ψ + 14Ψ/N', '16Ψ/N']
    """
    sharded = sum(getattr(each, kind) for kind in STAGES[stage].sharded)
    terms = {"Ψ": each.total - sharded, "Ψ/N": sharded}
    return " + ".join(f"{bytes_each}{symbol}" for symbol, bytes_each in terms.items() if bytes_each)
