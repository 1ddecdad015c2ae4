"""The additions of `zerosim run --verbose`: messages, bytes by kind, padding, formulas and whole digests."""

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from zerosim.instruments.memory import KINDS
from zerosim.report.figures import far_kept, fullest, memory_unit, messages_per_step, sent_per_step, steps_of
from zerosim.report.grid import Column, show_grid, show_words
from zerosim.verdict.outcome import Outcome, RankMemory, TrainedRow
from zerosim.words import FAR, KEPT, in_unit, joined_names, short, spread

HELD = (*KINDS, "total")
PEAK, FORMULA = "  at the peak", "  by formula"

SENT = "A reduce-scatter and an all-gather of all weights are P (N−1)/N each."

ALLOCATORS = {
    "first_fit": "first fit", "best_fit": "best fit",
    "first_fit_laid_out": "first fit, laid out", "best_fit_laid_out": "best fit, laid out",
}
LAID_OUT_MEANS = (
    "Laid out: kept gradients and saved activations have fixed places in one block, allocated in advance."
)


def show_details(console: Console, outcome: Outcome, *, timed: bool, warned: str) -> None:
    """Print every figure that the table rounds, adds up or leaves out; for the whole run, the mean over its steps."""
    if outcome.scenario.train.steps:
        show_heading(console, "What a rank sends in a step")
        show_sent(console, outcome, timed=timed)
        show_words(console, f"{SENT} {warned * timed}".rstrip(), style="dim")
        show_heading(console, "What a rank keeps between steps, and the peak of each kind and of all")
        show_held(console, outcome)
        show_padding(console, outcome)
    if any(stage.fragmentation for stage in outcome.trained):
        show_heading(console, "Addresses that rank 0's memory takes in the last step beyond the peak of its bytes")
        show_fragmentation(console, outcome)
        show_words(console, LAID_OUT_MEANS, style="dim")
    show_heading(console, "SHA-256")
    show_digests(console, outcome.trained)
    console.print()


def show_heading(console: Console, words: str) -> None:
    """Print a heading in bold, below an empty line."""
    console.print()
    show_words(console, words, style="bold")


def show_sent(console: Console, outcome: Outcome, *, timed: bool) -> None:
    """Print bytes and messages, the formula, and each collective's share; if ranks differ, the least and the most."""
    stages = outcome.trained
    unit = memory_unit(outcome)
    sent = [spread(in_unit(count, unit) for count in sent_per_step(stage)) for stage in stages]
    columns = [
        Column(f"all of it\n{unit.name}", sent),
        Column("by formula\nP (N−1)/N", [f"{stage.volume:.4g}" for stage in stages]),
        Column("messages", [messages_per_step(stage) for stage in stages]),
    ]
    if timed:
        seconds = [stage.measured.seconds["train"] / steps_of(stage) for stage in stages]
        columns.append(Column("ms", [short(1e3 * each) for each in seconds]))
    for name in sorted({name for stage in stages for rank in stage.traffic for name in rank.counts.by_collective}):
        cells = [spread(in_unit(count, unit) for count in sent_per_step(stage, name)) for stage in stages]
        columns.append(Column(f"{name}\n{unit.name}", cells))
    if any(rank.counts.between_bytes for stage in stages for rank in stage.traffic):
        away = [[rank.counts.between_bytes / steps_of(stage) for rank in stage.traffic] for stage in stages]
        cells = [spread(in_unit(round(count), unit) for count in sorted(each)) for each in away]
        columns.append(Column(f"to other hosts\n{unit.name}", cells))
    show_grid(console, [stage.name for stage in stages], columns)


def show_held(console: Console, outcome: Outcome) -> None:
    """Print two lines for each row, for the rank with the highest peak; a third with the formula if that does not hold;
    and one for each memory tier that holds offloaded states.
    """
    unit = memory_unit(outcome)
    names, counts = [], []
    for stage in outcome.trained:
        for name, found in held(stage.name, fullest(stage)):
            names.append(name)
            counts.append({"total": sum(found.values()), **found})
    columns = []
    for kind in HELD:
        cells = [in_unit(found[kind], unit) if kind in found else "" for found in counts]
        columns.append(Column(f"{KEPT.get(kind, kind)}\n{unit.name}", [
            Text(cell, style=STYLES.get(name, "")) for name, cell in zip(names, cells, strict=True)
        ]))
    show_grid(console, names, columns)


STYLES = {PEAK: "dim", FORMULA: "red"}


def held(name: str, memory: RankMemory) -> list[tuple[str, dict[str, int]]]:
    """The lines of a row: their names, and bytes by kind."""
    wrong = [] if memory.rests else [(FORMULA, memory.due.resting_bytes)]
    far = [(f"  {words}", found) for tier, words in FAR.items() if (found := far_kept(memory, tier))]
    return [(name, memory.figures.resting_bytes), *wrong, (PEAK, memory.figures.peak_bytes), *far]


def show_fragmentation(console: Console, outcome: Outcome) -> None:
    """Print the peak, and the bytes beyond it that each allocator needs."""
    found = {stage.name: stage.fragmentation for stage in outcome.trained if stage.fragmentation}
    unit = memory_unit(outcome)
    columns = [Column(f"peak\n{unit.name}", [in_unit(each.peak_bytes, unit) for each in found.values()])]
    for name, heading in ALLOCATORS.items():
        cells = [in_unit(each.beyond_peak_bytes[name], unit) for each in found.values()]
        columns.append(Column(f"{heading}\n{unit.name}", cells))
    show_grid(console, list(found), columns)


def show_padding(console: Console, outcome: Outcome) -> None:
    """Print whether kept bytes equal the formula's, and their padding."""
    if all(rank.rests for stage in outcome.trained for rank in stage.memory):
        paddings = sorted(rank.padding_bytes for stage in outcome.trained for rank in stage.memory)
        padding = spread(map(str, paddings))
        show_words(console, f"Kept bytes are the formula's, {padding} B of padding included.", style="dim")


def show_digests(console: Console, stages: Sequence[TrainedRow]) -> None:
    """Print the digests of weights and optimizer state in full, with their rows."""
    for what in ("weights", "optimizer"):
        rows: dict[str, list[str]] = {}
        for stage in stages:
            rows.setdefault(getattr(stage.measured, f"{what}_sha256"), []).append(stage.name)
        for digest, names in rows.items():
            show_words(console, f"{what}{f', {joined_names(names)}' * (len(rows) > 1)}")
            console.print(f"  {digest}", soft_wrap=True)
