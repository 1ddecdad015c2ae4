"""Published tables of the memory of model states, computed again and rounded as in print.

Sources: Rajbhandari, Rasley, Ruwase and He, "ZeRO: memory optimizations toward training trillion
parameter models" (2020), tables 1 and 2; "The ultra-scale playbook: training LLMs on GPU clusters"
(2025), memory of an 8B model.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import floor

from zerosim.figures.memory import largest_model, per_parameter, resting
from zerosim.stages import STAGES

GB = 10**9
GIB = 2**30
BILLION = 10**9
MIXED_ADAM = per_parameter("mixed", 12)
PRINTED = ("ddp", "zero1", "zero2", "zero3")
"""The stages in the sources; `STAGES` has those that can run."""


@dataclass(frozen=True)
class PublishedTable:
    """A table as it was printed: all cells are strings, and the first cell of a row names it."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str


def truncated(value: Fraction, decimals: int) -> Fraction:
    """`value` without the digits behind `decimals` places.

    >>> truncated(Fraction("4187.5"), 0)
    Fraction(4187, 1)
    """
    return Fraction(floor(value * 10**decimals), 10**decimals)


def rounded(value: Fraction, decimals: int) -> Fraction:
    """`value` to the nearest number with `decimals` places, the upper one of two.

    >>> float(rounded(Fraction("41.25"), 1))
    41.3
    """
    return truncated(value + Fraction(1, 2 * 10**decimals), decimals)


def printed(value: Fraction) -> str:
    """A number in as few digits as `value` needs.

    >>> printed(Fraction(120)), printed(Fraction("0.47"))
    ('120', '0.47')
    """
    return f"{float(value):g}"


def table1() -> PublishedTable:
    """GB on each rank, Stages I / II / III.

    >>> table1().rows[1]
    ('4', '52.5 / 41.3 / 30', '896 / 704 / 512', '7000 / 5500 / 4000')
    """

    def rounded_cell(gigabytes: Fraction) -> Fraction:
        return rounded(gigabytes, 1 if gigabytes >= 10 else 2)

    def truncated_cell(gigabytes: Fraction) -> Fraction:
        return truncated(gigabytes, 0 if gigabytes >= 100 else 1)

    def cell(parameters: int, ranks: int, cut: Callable[[Fraction], Fraction]) -> str:
        sums = (
            resting(stage, parameters, ranks, MIXED_ADAM).total
            for stage in PRINTED[1:]
        )
        return " / ".join(printed(cut(total / GB)) for total in sums)

    return PublishedTable(
        "ZeRO paper, Table 1: GB of model states on each rank, Stages I / II / III",
        ("ranks", "7.5B", "128B", "1T"),
        tuple(
            (
                str(ranks),
                cell(7_500_000_000, ranks, rounded_cell),
                cell(128 * BILLION, ranks, truncated_cell),
                cell(1000 * BILLION, ranks, truncated_cell),
            )
            for ranks in (1, 4, 16, 64, 256, 1024)
        ),
        "GB = 10^9 bytes. The paper rounds the column 7.5B and truncates the other two.",
    )


def table2() -> PublishedTable:
    """The largest model whose states fit into 32 GB on each rank, for degrees of model parallelism.

    >>> table2().rows[1]
    ('2', '128', '4B', '15.2B', '28.8B', '256B')
    """
    ranks, budget_bytes = 64, 32 * GB

    def cell(stage: str, degree: int) -> str:
        fitting = Fraction(largest_model(stage, budget_bytes, ranks, MIXED_ADAM), BILLION)
        billions = truncated(fitting, 1) * degree
        if billions < 500:
            return f"{printed(billions)}B"
        return f"{printed(truncated(billions / 1000, 1))}T"

    return PublishedTable(
        "ZeRO paper, Table 2: the largest model on ranks of 32 GB, 64 replicas",
        ("model parallelism", "ranks", *(STAGES[stage].title for stage in PRINTED)),
        tuple(
            (str(degree), str(ranks * degree), *(cell(stage, degree) for stage in PRINTED))
            for degree in (1, 2, 4, 8, 16)
        ),
        "B = 10^9 parameters, T = 10^12. The paper truncates each model to 0.1B before it multiplies it by the degree "
        "of model parallelism.",
    )


def playbook_8b() -> PublishedTable:
    """GiB of each kind on each rank, for a model of 8.03 billion parameters on 8 ranks.

    >>> playbook_8b().rows[2]
    ('Stage II', '15', '1.875', '7.5')
    """
    parameters, ranks, each = 8_030_000_000, 8, per_parameter("mixed", 8)
    whole = resting("ddp", parameters, ranks, each)
    kinds = ("parameters", "gradients", "optimizer")

    def cell(stage: str, kind: str) -> str:
        gibibytes = rounded(getattr(whole, kind) / GIB, 0)
        return printed(gibibytes / (ranks if kind in STAGES[stage].sharded else 1))

    return PublishedTable(
        "Ultra-scale playbook: GiB of model states per rank, 8.03B on 8 ranks, K = 8",
        ("", *kinds),
        tuple((STAGES[stage].title, *(cell(stage, kind) for kind in kinds)) for stage in PRINTED),
        "GiB = 2^30 bytes. The playbook rounds what DDP keeps to whole GiB before it divides it by the ranks: its 15 "
        f"is {float(whole.parameters / GIB):.2f}.",
    )


TABLES = {"table1": table1, "table2": table2, "8b": playbook_8b}
