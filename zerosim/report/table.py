"""The outcome of a run in the terminal: a row a stage, what all rows share, what went wrong, and the verdict.

Everything fits into 80 columns, reads without colour, and explains itself; a narrower terminal gets fewer columns.
"""

import json
import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from rich.console import Console
from rich.text import Text

from zerosim.optim.scaling import LOWEST_SCALE, skipped_in_vain
from zerosim.report.conclusion import show_conclusion
from zerosim.report.details import show_details
from zerosim.report.figures import (
    KEPT,
    common_unit,
    element_bytes,
    fullest,
    gathering_bytes,
    grouped,
    in_unit,
    joined,
    messages_per_step,
    plural,
    sent_in_units,
    short_digest,
    spread,
    three_digits,
)
from zerosim.report.grid import Column, fitting, show_grid, show_words
from zerosim.report.memory_table import ByteUnit
from zerosim.report.times import show_times
from zerosim.stages import STAGES
from zerosim.verdict.diagnosis import Divergence
from zerosim.verdict.outcome import Outcome, TrainedRow

CHANGED, WRONG = "›", "≠"
COLOURS = {"e": "green", "d": "red", WRONG: "red"}
"""Of cells, by their first character: equal, differ, wrong."""

GROUP = "kept, bytes a parameter"


def show_heading(console: Console, title: str, caption: str, setting: str) -> None:
    """What is about to run, and in which world."""
    for words, style in ((title, "bold"), (caption, ""), (setting, "dim")):
        if words:
            show_words(console, words, style=style)


def show_outcome(console: Console, outcome: Outcome, *, verbose: bool = False, timed: bool = False) -> None:
    """What each row computed, sent and held, what all share, what went wrong, and the verdict.

    What was traced is shown too. `verbose` adds what the table leaves out, `timed` the time of a step to that: for
    worlds in which it says something.
    """
    if outcome.stages:
        show_table(console, outcome)
        show_shared(console, outcome)
        show_legend(console, outcome)
        show_times(console, outcome, timed=timed)
        if verbose:
            show_details(console, outcome, timed=timed)
    for config, shortage in outcome.did_not_fit:
        show_words(console, f"{config.name} does not fit: {shortage}")
    show_skipped(console, outcome)
    for stage in outcome.stages:
        if stage.first_divergence is not None:
            show_divergence(console, stage, stage.first_divergence)
    if outcome.on_other_ranks:
        show_other_ranks(console, outcome)
    show_conclusion(console, outcome)


def show_table(console: Console, outcome: Outcome) -> None:
    """The main table; where there is no room for the kinds of states, what is kept of them together."""
    names = [stage.name for stage in outcome.stages]
    wide = columns(outcome, [*KEPT, "sum"])
    fits = fitting(names, wide, console.width) == len(wide)
    show_grid(console, names, wide if fits else columns(outcome, ["sum"]))


def columns(outcome: Outcome, kinds: Sequence[str]) -> list[Column]:
    """What else the stage of each row is called, its bits and, where there were steps, what it sent, kept and held."""
    stages = outcome.stages
    found = [
        Column("", [STAGES[stage.stage].also.partition(",")[0] for stage in stages]),
        Column("bits", marked([bits(stage) for stage in stages])),
    ]
    if not outcome.scenario.train.steps:
        return found
    found.append(Column(sent_heading(outcome), marked([sent(outcome, stage) for stage in stages])))
    group = GROUP if len(kinds) > 1 else ""
    for kind in kinds:
        heading = KEPT.get(kind, kind) if group else "kept, bytes\na parameter"
        found.append(Column(heading, marked([kept(outcome, stage, kind) for stage in stages]), group))
    unit = peak_unit(outcome)
    peaks = [in_unit(fullest(stage).peak_bytes["total"], unit) for stage in stages]
    return [*found, Column(f"peak\n{unit.name}", marked(peaks))]


def marked(cells: Sequence[str]) -> list[Text]:
    """The cells, with a mark at those that are not as in the row above, and at those that are wrong."""
    found = [Text(cell, style=COLOURS.get(cell[0], "")) for cell in cells[:1]]
    for above, cell in pairwise(cells):
        colour = COLOURS.get(cell[0], "")
        changed = cell != above and not cell.startswith(WRONG)
        marked_cell = Text(f"{CHANGED}{cell}", style=f"bold {colour or 'cyan'}")
        found.append(marked_cell if changed else Text(cell, style=colour))
    return found


def bits(stage: TrainedRow) -> str:
    """Equal to what they are compared with or not."""
    return {None: "–", True: "equal", False: "differ"}[stage.equal]


def sent_heading(outcome: Outcome) -> str:
    """With the unit in which figures below it are, unless nothing is sent."""
    count = gathering_bytes(outcome)
    if not count:
        return "sent"
    unit = common_unit(count)
    return f"sent\n×{in_unit(count, unit)} {unit.name}"


def sent(outcome: Outcome, stage: TrainedRow) -> str:
    """By a rank in a step, in units of gathering all weights, marked where it is not what the formula says."""
    holds = all(rank.holds for rank in stage.traffic)
    return f"{WRONG * (not holds)}{sent_in_units(outcome, stage):.4g}"


def kept(outcome: Outcome, stage: TrainedRow, kind: str) -> str:
    """Bytes of a kind, or of all, for each parameter; marked where they are not what the formula says."""
    rank = fullest(stage)
    found, due = rank.resting_bytes, rank.formula_bytes
    wrong = found[kind] != due[kind] if kind in found else not all(rank.rests for rank in stage.memory)
    count = found[kind] if kind in found else sum(found.values())
    return f"{WRONG * wrong}{three_digits(count / outcome.model.count)}"


def peak_unit(outcome: Outcome) -> ByteUnit:
    return common_unit(max(fullest(stage).peak_bytes["total"] for stage in outcome.stages))


def recomputed(stage: TrainedRow) -> float:
    """Matrix products with what is computed again, over those of forward and backward."""
    found = {what: sum(each[what] for each in stage.operations) for what in stage.formula_operations}
    return sum(found.values()) / max(found["forward"] + found["backward"], 1)


TESTS = {
    "accuracy": "test accuracy",
    "exact sequences": "test sequences without a mistake",
    "loss": "test loss",
    "mean squared error": "mean squared test error",
}
"""What the terminal calls each measure of a test split."""


def show_shared(console: Console, outcome: Outcome) -> None:
    """Once what is the same in all rows; of the rest which rows have which."""
    stages, steps, dataset = outcome.stages, outcome.scenario.train.steps, outcome.experiment.dataset
    facts: dict[str, list[str]] = {}
    if steps:
        facts["final loss"] = [f"{float(stage.losses[-1][0]):.4g}" for stage in stages]
    if dataset.x_test is not None:
        tests = [stage.test for stage in stages if stage.test is not None]
        shares = dataset.measure in ("accuracy", "exact sequences")
        facts[TESTS[dataset.measure]] = [f"{test:.2%}" if shares else f"{test:.4g}" for test in tests]
    if all(stage.sample for stage in stages):
        facts["says"] = [json.dumps(stage.sample, ensure_ascii=False) for stage in stages]
    if any(sum(each["recomputation"] for each in stage.operations) for stage in stages):
        facts["floating-point operations"] = [f"×{recomputed(stage):.3g}" for stage in stages]
    if steps:
        facts["messages a step"] = [messages_per_step(stage, steps) for stage in stages]
    facts["weights SHA-256"] = [short_digest(stage.weights_sha256) for stage in stages]
    same = [f"{what} {found[0]}" for what, found in facts.items() if len(set(found)) == 1]
    prefix = {1: "", 2: "In both rows: "}.get(len(stages), f"In all {len(stages)} rows: ")
    show_words(console, f"{prefix}{', '.join([plural(steps, 'step'), *same])}")
    for what, found in facts.items():
        if len(set(found)) > 1:
            show_words(console, sentence(f"{what}: {grouped([stage.name for stage in stages], found)}"))


def sentence(words: str) -> str:
    return words[:1].upper() + words[1:]


def show_legend(console: Console, outcome: Outcome) -> None:
    """What the headings and marks mean, for those that are there."""
    entries = list(legend(outcome))
    width = max((len(key) for key, _ in entries), default=0)
    for key, words in entries:
        show_words(console, words, key=f"{key:<{width}}  ", style="dim")


def legend(outcome: Outcome) -> Iterator[tuple[str, str]]:
    """Each heading or mark, and its meaning."""
    if words := meaning_of_bits(outcome):
        yield "bits", words
    if outcome.scenario.train.steps:
        yield "sent", meaning_of_sent(outcome)
        yield "kept", "by a rank between steps: its weights, gradients and optimizer state"
        yield "peak", "the most that a rank holds at a time, activations and buffers too"
        cells = [str(cell) for column in columns(outcome, [*KEPT, "sum"]) for cell in column.cells]
        if any(cell.startswith(CHANGED) for cell in cells):
            yield CHANGED, "not as in the row above"
        if any(cell.startswith(WRONG) for cell in cells):
            yield WRONG, "not what the formula says"
    for also in dict.fromkeys(STAGES[stage.stage].also for stage in outcome.stages):
        name, _, others = also.partition(", ")
        if others:
            yield name, f"also called {others}"


def meaning_of_bits(outcome: Outcome) -> str:
    """With what the bytes of a row were compared; nothing where there was nothing to compare with."""
    partners = {stage.compared_with for stage in outcome.stages} - {None}
    if not partners:
        return ""
    what = "one process" if partners == {"one process"} else "the first row that adds in the same order"
    if not outcome.scenario.train.steps:
        return f"compared with {what}: initial weights"
    return f"compared with {what}: loss, weights, gradients and optimizer state of every step"


def meaning_of_sent(outcome: Outcome) -> str:
    count = gathering_bytes(outcome)
    if not count:
        return "one rank has nobody to send to"
    unit = common_unit(count)
    evenly = all(len({rank.sent_bytes for rank in stage.traffic}) == 1 for stage in outcome.stages)
    whole = in_unit(outcome.model.count * element_bytes(outcome), unit)
    return (
        f"by a rank in a step{'' if evenly else ', on average'}; {in_unit(count, unit)} {unit.name} is what gathering "
        f"all weights once takes: (N−1)/N of {whole} {unit.name} on N = {outcome.scenario.world.ranks} ranks"
    )


def show_skipped(console: Console, outcome: Outcome) -> None:
    """Which rows did not train because gradients overflowed whatever the loss scale, if there are any."""
    steps = outcome.scenario.train.steps
    lost = [stage for stage in outcome.stages if skipped_in_vain(stage.updates, steps - stage.updates)]
    if lost:
        skipped = [f"{count:,}" for count in sorted(steps - stage.updates for stage in lost)]
        show_words(
            console,
            f"{joined([stage.name for stage in lost])}: gradients overflowed float16 in {spread(skipped)} of "
            f"{plural(steps, 'step')}, which changed nothing but the loss scale: it halves, down to "
            f"{LOWEST_SCALE:.3g}. Scale the data down, take more steps, or set train.precision to bf16.",
            style="yellow",
        )


def show_divergence(console: Console, stage: TrainedRow, found: Divergence) -> None:
    """Where bits first differ, and in which orders the two sides add if these differ."""
    show_words(console, f"{stage.name}: {divergence(found)}", style="red")
    if stage.order and stage.order["ours"] != stage.order["reference"]:
        for side, order in stage.order.items():
            show_words(console, order, key=f"    {side + ' adds':<15} ")


def show_other_ranks(console: Console, outcome: Outcome) -> None:
    """The digest of the weights on every number of ranks; where it is not the same in all rows, whose it is."""
    ranks = outcome.scenario.world.ranks
    found: dict[int, dict[str, list[str]]] = {}
    ours = [(ranks, stage.name, stage.weights_sha256) for stage in outcome.stages]
    others = [(other.ranks, other.name, other.weights_sha256) for other in outcome.on_other_ranks]
    for count, name, digest in [*ours, *others]:
        found.setdefault(count, {}).setdefault(digest, []).append(name)
    console.print("SHA-256 of the weights", style="bold")
    for count, by_digest in sorted(found.items()):
        for digest, names in by_digest.items():
            whose = f"  {joined(names)}" * (len(by_digest) > 1)
            show_words(console, f"{short_digest(digest)}{whose}", key=f"{plural(count, 'rank'):>8}  ")


def divergence(found: Divergence) -> str:
    """One line: where the first difference is, both values, and how far apart they are."""
    index = f"[{', '.join(map(str, found.index))}]" if found.index else ""
    what = f"{found.state} of {found.name}" if found.state else found.name
    apart = "not comparable in ULPs" if found.ulps is None else f"{found.ulps} ULP apart"
    return (
        f"after step {found.step}, rank {found.rank} holds {what}{index} = {value(found.ours, found.ours_bits)}, "
        f"one process {value(found.reference, found.reference_bits)} ({apart}; chunk {found.chunk})"
    )


def value(number: float, bits: str) -> str:
    """A number, with its bits where it does not tell them.

    >>> value(0.5, "3f000000"), value(-0.0, "80000000")
    ('0.5', '-0.0 (0x80000000)')
    """
    return f"{number!r} (0x{bits})" if number == 0 or math.isnan(number) else f"{number!r}"
