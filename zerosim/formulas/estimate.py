"""What each rank keeps of one model, stage by stage: the paper's count of it, or DeepSpeed's."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from zerosim.formulas import deepspeed
from zerosim.formulas.memory import ModelStates, formula, per_parameter, resting
from zerosim.stages import STAGES


class EstimatedRow(NamedTuple):
    """One stage: what a rank keeps, in bytes, and its sum as a formula."""

    stage: str
    formula: str
    states: ModelStates


@dataclass(frozen=True)
class Estimate:
    """Figures of every stage; `basis` says how they were counted, `ddp_bytes` what 100% is."""

    parameters: int
    ranks: int
    basis: str
    rows: Sequence[EstimatedRow]
    ddp_bytes: Fraction
    notes: Sequence[str]


def by_paper(parameters: int, ranks: int, each: ModelStates, basis: str) -> Estimate:
    """All stages, with `each` bytes for a parameter.

    >>> estimate = by_paper(1000, 4, per_parameter("mixed", 12), "mixed precision")
    >>> {row.stage: int(row.states.total) for row in estimate.rows}["zero3"]
    4000
    """
    return Estimate(
        parameters,
        ranks,
        basis,
        [EstimatedRow(stage, formula(stage, each), resting(stage, parameters, ranks, each))
         for stage in STAGES],
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
    states = {"zero2": deepspeed.zero2(parameters, ranks)}
    notes = [*deepspeed.DIFFERENCES]
    if largest_layer is None:
        notes.append("For Stage III give --largest-layer L, the parameters of the largest layer.")
    else:
        states["zero3"] = deepspeed.zero3(parameters, ranks, largest_layer)
    return Estimate(
        parameters,
        ranks,
        "DeepSpeed's estimate for mixed precision and adam",
        [EstimatedRow(stage, deepspeed.FORMULAS[stage], found) for stage, found in states.items()],
        ddp_bytes=parameters * per_parameter("mixed", 12).total,
        notes=notes,
    )
