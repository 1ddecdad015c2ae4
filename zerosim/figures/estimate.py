"""The model states that each rank keeps, stage by stage: by the paper's count, or by DeepSpeed's, which differs.

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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import NamedTuple

from zerosim.allocation import MODEL_STATES, Kind, Tier
from zerosim.figures.memory import ModelStates, formula, per_parameter, resting
from zerosim.stages import STAGES

FORMULAS = {"zero2": "2Ψ + 18Ψ/N", "zero3": "4L + 18Ψ/N"}

DIFFERENCES = (
    "DeepSpeed counts gradients in fp32 too, 4Ψ/N, since it converts them before an update. In Stage II they come on "
    "top of the paper's 2Ψ + 14Ψ/N.",
    "In Stage III they replace the fp16 gradients, 2Ψ/N, in the paper's 16Ψ/N. Weights and gradients of the "
    "largest layer, whole and in fp16, are the 4L: so this is a peak, while the paper counts what rests between steps.",
)


class EstimatedRow(NamedTuple):
    """One stage: the bytes that a rank keeps, their sum as a formula, and the tier of each state that is offloaded."""

    stage: str
    formula: str
    states: ModelStates
    tiers: Mapping[Kind, Tier] = MappingProxyType({})

    def kept(self, tier: Tier) -> Fraction:
        """The bytes that a rank keeps in a tier.

        >>> row = EstimatedRow("zero1", "", ModelStates(Fraction(2), Fraction(2), Fraction(3)), {"optimizer": "host"})
        >>> int(row.kept("device")), int(row.kept("host")), int(row.kept("disk"))
        (4, 3, 0)
        """
        found = {kind: getattr(self.states, kind) for kind in MODEL_STATES}
        return sum((count for kind, count in found.items() if self.tiers.get(kind, "device") == tier), Fraction())


@dataclass(frozen=True)
class Estimate:
    """The figures of every stage; `basis` describes the count, and `ddp_bytes` is 100%."""

    parameters: int
    ranks: int
    basis: str
    rows: Sequence[EstimatedRow]
    ddp_bytes: Fraction
    notes: Sequence[str]

    @property
    def offloaded(self) -> bool:
        """Whether some state of some stage is offloaded."""
        return any(row.tiers for row in self.rows)


def by_paper(
    parameters: int, ranks: int, each: ModelStates, basis: str, *, offload_optimizer: str = "none",
    offload_parameters: str = "none",
) -> Estimate:
    """All stages, with `each` bytes for a parameter; some states may be offloaded to `host` or `disk`.

    >>> estimate = by_paper(1000, 4, per_parameter("mixed", 12), "mixed precision")
    >>> {row.stage: int(row.states.total) for row in estimate.rows}["zero3"]
    4000
    """
    return Estimate(
        parameters,
        ranks,
        basis,
        [EstimatedRow(key, formula(key, each), resting(key, parameters, ranks, each),
                      stage.offloaded(offload_optimizer, offload_parameters)) for key, stage in STAGES.items()],
        ddp_bytes=parameters * each.total,
        notes=(
            "Memory between steps. During a step, activations are added, one unit's full gradient (Stages II and "
            "III), and one unit's full parameters (Stage III).",
        ),
    )


def by_deepspeed(parameters: int, ranks: int, largest_layer: int | None) -> Estimate:
    """Stage II and, if the parameters of the largest layer are known, Stage III.

    >>> estimate = by_deepspeed(1000, 4, largest_layer=100)
    >>> [(row.stage, int(row.states.total)) for row in estimate.rows]
    [('zero2', 6500), ('zero3', 4900)]
    """
    states = {"zero2": deepspeed_zero2(parameters, ranks)}
    notes = [*DIFFERENCES]
    if largest_layer is None:
        notes.append("For Stage III give --largest-layer L, the parameters of the largest layer.")
    else:
        states["zero3"] = deepspeed_zero3(parameters, ranks, largest_layer)
    return Estimate(
        parameters,
        ranks,
        "DeepSpeed's estimate for mixed precision and adam",
        [EstimatedRow(stage, FORMULAS[stage], found) for stage, found in states.items()],
        ddp_bytes=parameters * per_parameter("mixed", 12).total,
        notes=notes,
    )


def deepspeed_zero2(parameters: int, ranks: int) -> ModelStates:
    """Bytes on every rank, exact.

    >>> int(deepspeed_zero2(2_851_000_000, 8).total)
    12116750000
    """
    shard = Fraction(parameters, ranks)
    return ModelStates(Fraction(2 * parameters), (2 + 4) * shard, 12 * shard)


def deepspeed_zero3(parameters: int, ranks: int, largest_layer: int) -> ModelStates:
    """Bytes on every rank at the peak, while the largest layer is computed, exact.

    >>> int(deepspeed_zero3(2_851_000_000, 8, 32_000_000).total)
    6542750000
    """
    shard = Fraction(parameters, ranks)
    return ModelStates(2 * shard + 2 * largest_layer, 4 * shard + 2 * largest_layer, 12 * shard)
