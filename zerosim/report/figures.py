"""Figures as they stand in tables and sentences."""

from collections.abc import Iterable, Sequence

from zerosim.report.memory_table import UNITS, Unit
from zerosim.verdict.outcome import StageOutcome


def common_unit(most_bytes: int) -> Unit:
    """The unit in which `most_bytes` still has two digits before the point, for all figures beside it.

    >>> common_unit(309_696).name, common_unit(1_200_000).name, common_unit(10_000_000).name
    ('kB', 'kB', 'MB')
    """
    return next((unit for unit in UNITS if most_bytes >= 10 * unit.size), UNITS[-1])


def in_unit(count: int, unit: Unit) -> str:
    """
    >>> in_unit(68_912, common_unit(309_696))
    '68.9'
    """
    return short(count / unit.size)


def short(value: float) -> str:
    """One place after the point, none from 1000 on.

    >>> short(1.98), short(1614.96)
    ('2.0', '1615')
    """
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}"


def joined(words: Sequence[str]) -> str:
    """
    >>> joined(["2", "2", "3"])
    '2, 2 and 3'
    """
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def plural(count: int, noun: str) -> str:
    """
    >>> plural(1, "step"), plural(1_000, "step")
    ('1 step', '1,000 steps')
    """
    return f"{count:,} {noun}{'s' * (count != 1)}"


def spread(figures: Iterable[str]) -> str:
    """The first and the last of ascending figures, or one if they read the same.

    >>> spread(["15", "18", "21"]), spread(["18", "18"])
    ('15–21', '18')
    """
    first, *_, last = [*figures] * 2
    return first if first == last else f"{first}–{last}"


def sent_per_step(stage: StageOutcome, steps: int) -> list[int]:
    """The bytes that each rank sends in a step, ascending."""
    return sorted(rank.sent_bytes // max(steps, 1) for rank in stage.traffic)


def messages_per_step(stage: StageOutcome, steps: int) -> str:
    """How many messages a rank sends in a step; where ranks differ, the fewest and the most."""
    return spread(str(messages) for messages in sorted(rank.messages // max(steps, 1) for rank in stage.traffic))


def peak_bytes(stage: StageOutcome, kind: str) -> int:
    """The most of a kind that was alive at a time, on the rank where it was most."""
    return max(rank.peak_bytes[kind] for rank in stage.memory)
