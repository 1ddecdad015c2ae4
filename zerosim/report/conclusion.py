"""What the rows of an outcome have in common, and in what they differ, in plain sentences with the numbers."""

from collections.abc import Sequence

from zerosim.report.figures import common_unit, in_unit, joined, messages_per_step, peak_bytes
from zerosim.verdict.outcome import Outcome, StageOutcome

KEPT = {"parameters": "weights", "gradients": "gradients", "optimizer": "optimizer state"}
HELD = {"parameters": "weights", "gradients": "gradients", "activations": "activations"}
"""Not buffers: those for messages are a matter of the world, and outlive a row."""


def conclusion(outcome: Outcome) -> str:
    """One sentence on bits, one on what each rank sends, keeps and holds; figures in the order of the rows.

    What is kept, and the peak, are left out where they are the same in all rows.
    """
    stages, steps = outcome.stages, outcome.scenario.train.steps
    if not steps:
        return f"{bits(stages)}."
    clauses = [sent(stages, steps), *kept(stages, outcome.model.count), *peak(stages)]
    return f"{bits(stages)}. {'; '.join(clauses)}."


def bits(stages: Sequence[StageOutcome]) -> str:
    """Which rows end with the same weights."""
    groups: dict[str, list[str]] = {}
    for stage in stages:
        groups.setdefault(stage.weights_sha256, []).append(stage.name)
    alike = [names for names in groups.values() if len(names) > 1]
    alone = [name for names in groups.values() for name in names if len(names) == 1]
    if not alike:
        return "Each row ends with other weights"
    if len(groups) == 1:
        return f"{'Both' if len(stages) == 2 else f'All {len(stages)}'} rows end with the same weights, bit for bit"
    words = [f"{joined(names)} end with the same weights, bit for bit" for names in alike]
    if alone:
        words.append(f"{joined(alone)} with other ones")
    return "; ".join(words)


def sent(stages: Sequence[StageOutcome], steps: int) -> str:
    """How much each row sends, and in how many messages."""
    volumes = series([f"{stage.volume:.4g}" for stage in stages])
    messages = series([messages_per_step(stage, steps) for stage in stages])
    return f"A rank sends {volumes} P (N−1)/N in {messages} messages a step"


def kept(stages: Sequence[StageOutcome], parameters: int) -> list[str]:
    """What each row keeps between steps of the kinds of which it is not the same in all."""
    differing = []
    for kind, words in KEPT.items():
        found = [f"{stage.memory[0].resting_bytes[kind] / parameters:.3g}" for stage in stages]
        if len(set(found)) > 1:
            differing.append(f"{joined(found)} bytes of {words}")
    return [f"for each parameter it keeps {', '.join(differing)}"] if differing else []


def peak(stages: Sequence[StageOutcome]) -> list[str]:
    """The most that each row holds at a time of the kinds of which it is not the same in all."""
    peaks = {words: [peak_bytes(stage, kind) for stage in stages] for kind, words in HELD.items()}
    unit = common_unit(max(max(counts) for counts in peaks.values()))
    differing = [
        f"{joined([in_unit(count, unit) for count in counts])} {unit.name} of {words}"
        for words, counts in peaks.items() if len(set(counts)) > 1
    ]
    return [f"at the peak it holds {', '.join(differing)}"] if differing else []


def series(figures: Sequence[str]) -> str:
    """
    >>> series(["2", "2", "3"]), series(["18", "18"])
    ('2, 2 and 3', '18')
    """
    return joined(figures) if len(set(figures)) > 1 else figures[0]
