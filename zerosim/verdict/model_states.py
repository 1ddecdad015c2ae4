"""Memory of model states by formula: the bytes that each rank keeps, as the ZeRO paper counts them.

    Ψ   parameters of the model             N   data-parallel ranks
    K   optimizer bytes per parameter       (12 for Adam in mixed precision)

                parameters   gradients   optimizer   sum for 2 + 2 + 12 bytes
    DDP         2Ψ           2Ψ          KΨ          16Ψ
    Stage I     2Ψ           2Ψ          KΨ/N        4Ψ + 12Ψ/N
    Stage II    2Ψ           2Ψ/N        KΨ/N        2Ψ + 14Ψ/N
    Stage III   2Ψ/N         2Ψ/N        KΨ/N        16Ψ/N

These are bytes between steps. During a step more is alive: activations in every stage, one unit's full gradient in
Stages II and III, and one unit's full parameters in Stage III.

Sources: Rajbhandari, Rasley, Ruwase and He, "ZeRO: memory optimizations toward training trillion
parameter models" (2020), sections 3.1 and 5.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple, get_args

from zerosim.core import precisions
from zerosim.core.allocation import MODEL_STATES, Kind, Tier
from zerosim.stages import STAGES
from zerosim.stages.optimizers import OPTIMIZERS

PRECISIONS = {"mixed": precisions.PRECISIONS["bf16"], "fp32": precisions.PRECISIONS["fp32"],
              "bf16_alone": precisions.PRECISIONS["bf16_alone"]}
FP32_BYTES = precisions.FLOAT32.itemsize


def optimizer_bytes(precision: str, optimizer: str) -> int:
    """K: the master copy, if there is one, and a number for each slot of the optimizer, of 4 bytes or the weights'.

    >>> optimizer_bytes("mixed", "adam"), optimizer_bytes("fp32", "adam")
    (12, 8)
    """
    kept = PRECISIONS[precision]
    return FP32_BYTES * kept.mixed + kept.state.itemsize * len(OPTIMIZERS[optimizer].slots)


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


def per_parameter(precision: str, k: int, accumulate: str = "weights") -> ModelStates:
    """Bytes of model states for each parameter, before any sharding; `k` is the optimizer's, see `optimizer_bytes`.

    With `accumulate` = "fp32" a float32 gradient is kept in addition to the 16-bit one (`parallel.accumulate_dtype`).

    >>> int(per_parameter("mixed", 12).total), int(per_parameter("mixed", 12, "fp32").total)
    (16, 20)
    """
    kept = PRECISIONS[precision]
    return ModelStates(*map(Fraction, of_parameter(kept, k, wide=accumulate == "fp32" and kept.mixed).values()))


def of_parameter(precision: precisions.Precision, k: int, *, wide: bool) -> dict[Kind, int]:
    """The bytes of a parameter's weight, gradient (`wide`: with a float32 sum beside it) and optimizer state."""
    size = precision.weights.itemsize
    return {"parameters": size, "gradients": size + FP32_BYTES * wide, "optimizer": k}


def resting(stage: str, parameters: int, ranks: int, states: ModelStates) -> ModelStates:
    """Bytes on every rank between steps, with shards of exactly 1/N: the paper's figures.

    `states` has the bytes of one parameter.

    >>> float(resting("zero1", 7_500_000_000, 64, per_parameter("mixed", 12)).total)
    31406250000.0
    """
    return ModelStates(*(parameters * getattr(states, kind) / (ranks if kind in STAGES[stage].sharded else 1)
                         for kind in MODEL_STATES))


def formula(stage: str, states: ModelStates) -> str:
    """The sum that a rank keeps, as a formula in Ψ and N.

    >>> [formula(stage, per_parameter("mixed", 12)) for stage in ("ddp", "zero1", "zero2", "zero3")]
    ['16Ψ', '4Ψ + 12Ψ/N', '2Ψ + 14Ψ/N', '16Ψ/N']
    """
    sharded = sum(getattr(states, kind) for kind in STAGES[stage].sharded)
    terms = {"Ψ": states.total - sharded, "Ψ/N": sharded}
    return " + ".join(f"{bytes_each}{symbol}" for symbol, bytes_each in terms.items() if bytes_each)


class EstimatedRow(NamedTuple):
    """One stage: the bytes that a rank keeps, their sum as a formula, and the states that are on the host."""

    stage: str
    formula: str
    states: ModelStates
    on_host: Sequence[Kind] = ()

    def kept(self, tier: Tier) -> Fraction:
        """The bytes that a rank keeps in a memory.

        >>> row = EstimatedRow("zero1", "", ModelStates(Fraction(2), Fraction(2), Fraction(3)), ("optimizer",))
        >>> int(row.kept("device")), int(row.kept("host"))
        (4, 3)
        """
        terms = {kind: getattr(self.states, kind) for kind in MODEL_STATES}
        return sum((count for kind, count in terms.items() if (kind in self.on_host) == (tier == "host")), Fraction())


@dataclass(frozen=True)
class Estimate:
    """The figures of every stage; `basis` describes the count."""

    parameters: int
    ranks: int
    basis: str
    rows: Sequence[EstimatedRow]
    notes: Sequence[str] = (
        "Memory between steps. During a step, activations are added, one unit's full gradient (Stages II and III), and "
        "one unit's full parameters (Stage III).",)

    @property
    def offloaded(self) -> bool:
        """Whether some state of some stage is offloaded."""
        return any(row.on_host for row in self.rows)

    def document(self) -> dict[str, Any]:
        """The estimate as JSON types: whole numbers as integers, others as floats."""
        def number(exact: Fraction) -> int | float:
            return exact.numerator if exact.denominator == 1 else float(exact)

        def stage(row: EstimatedRow) -> dict[str, Any]:
            states = {f"{kind}_bytes": number(getattr(row.states, kind)) for kind in (*MODEL_STATES, "total")}
            tiers = {"tiers_bytes": {tier: number(row.kept(tier)) for tier in get_args(Tier)}} if self.offloaded else {}
            return {"stage": row.stage, **states, **tiers, "formula": row.formula}

        return {"parameters": self.parameters, "ranks": self.ranks, "basis": self.basis,
                "stages": [*map(stage, self.rows)], "notes": self.notes}


def estimate(
    parameters: int, ranks: int, precision: str, optimizer: str, *, offload_optimizer: str = "none",
    offload_parameters: str = "none", accumulate: str = "weights",
) -> Estimate:
    """All stages; some states may be offloaded to the host.

    >>> states = estimate(1000, 4, "mixed", "adam")
    >>> {row.stage: int(row.states.total) for row in states.rows}["zero3"], states.basis
    (4000, 'mixed precision, adam: 2 + 2 + 12 bytes per parameter')
    """
    states = per_parameter(precision, optimizer_bytes(precision, optimizer), accumulate)
    terms = f"{states.parameters} + {states.gradients} + {states.optimizer}"
    tiers = {"optimizer": offload_optimizer, "parameters": offload_parameters}
    far = [f"{kind} offloaded to host" for kind, tier in tiers.items() if tier == "host"]
    return Estimate(
        parameters, ranks, "; ".join([f"{precision} precision, {optimizer}: {terms} bytes per parameter", *far]),
        [EstimatedRow(key, formula(key, states), resting(key, parameters, ranks, states),
                      stage.on_host(offload_optimizer, offload_parameters)) for key, stage in STAGES.items()])
