"""The legend of the main table: the meaning of its headings, marks and names, one line each."""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from zerosim.report.bars import KINDS
from zerosim.report.figures import element_bytes, far_tiers, gathering_bytes, memory_unit, sent_in_units
from zerosim.report.grid import Column, show_words
from zerosim.stages import STAGES, Stage
from zerosim.verdict.outcome import Outcome
from zerosim.words import FAR, KEPT, grouped, in_one_unit, joined, joined_names

WRONG = "≠"
"""The mark before a figure that differs from the formula's."""

STATES = {kind: f"{name} state" if kind == "optimizer" else name for kind, name in KEPT.items()}
"""The names of model states in sentences."""


def show_legend(console: Console, outcome: Outcome, table: Sequence[Column]) -> None:
    """Print the meaning of everything in a table of these columns."""
    there = " ".join(str(words) for column in table for words in [column.heading, *column.cells])
    found = legend(outcome, bars="━" in there)
    entries = [*of_stages(outcome), *((key, words) for key, words in found if key in there)]
    width = max((len(key) for key, _ in entries), default=0)
    for key, words in entries:
        show_words(console, words, key=f"{key:<{width}}  ", style="dim")


def legend(outcome: Outcome, *, bars: bool) -> Iterator[tuple[str, str | Text]]:
    """Each heading or mark, and its meaning."""
    yield "same bits", meaning_of_bits(outcome)
    if outcome.scenario.train.steps:
        yield "keeps", meaning_of_kept(outcome, bars=bars)
        yield FAR["host"], "offloaded states between steps, in the memory of the host"
        yield FAR["disk"], "offloaded states between steps, and offloaded activations at the peak"
        yield "sends", meaning_of_sent(outcome)
    yield "peak", "largest memory of a rank at any time, with activations and messages"
    yield WRONG, "not what the formula says"


def meaning_of_bits(outcome: Outcome) -> str:
    """The meaning of the column of bits: the compared arrays and their reference."""
    partners = {stage.compared_with for stage in outcome.trained} - {None}
    what = "loss, weights, gradients and optimizer state after every step"
    if not outcome.scenario.train.steps:
        what = "the initial weights"
    if partners == {"one process"}:
        return f"{what}, compared with those of one process that trains alone"
    return f"{what}, compared with those of the first row that adds in the same order"


def meaning_of_kept(outcome: Outcome, *, bars: bool) -> Text:
    """The meaning of the column of kept bytes: its kinds, with their shades in bars."""
    kinds = [Text.assemble((f"{kind.shade} " * bars, kind.colour), STATES[kind.name]) for kind in KINDS]
    mixed = any(row.config.precision.mixed for row in outcome.rows)
    apart = Text("  " if bars else ", ")
    where = " on the device" * bool(far_tiers(outcome))
    return Text(f"between steps{where}: ").append(apart.join(kinds)).append(", with float32 copies of weights" * mixed)


def meaning_of_sent(outcome: Outcome) -> str:
    """The volume of each stage as a multiple of one all-gather of all weights."""
    count = gathering_bytes(outcome)
    if not count:
        return "one rank sends nothing"
    unit, ranks = memory_unit(outcome), outcome.scenario.world.ranks
    evenly = all(len({rank.counts.sent_bytes for rank in stage.traffic}) == 1 for stage in outcome.trained)
    multiples = [f"{sent_in_units(outcome, stage):.4g}× that" for stage in outcome.trained]
    by_title = dict.fromkeys(
        (STAGES[stage.config.row.stage].title, each) for stage, each in zip(outcome.trained, multiples, strict=True))
    names = [stage.name for stage in outcome.trained]
    if len({title for title, _ in by_title}) == len(by_title):
        names, multiples = [list(each) for each in zip(*by_title, strict=True)]
    whose = multiples[0] if len(set(multiples)) == 1 else grouped(names, multiples)
    once, whole = in_one_unit([count, outcome.model.count * element_bytes(outcome)], unit)
    mean = "" if evenly else ", the mean over all"
    return (
        f"bytes per rank and step{mean}. One all-gather of all weights: {once} {unit.name}; a step: {whose}. "
        f"(Papers write P (N−1)/N: P = {whole} {unit.name} of weights, N = {ranks} ranks.)"
    )


def of_stages(outcome: Outcome) -> Iterator[tuple[str, str]]:
    """The states that a rank keeps in each stage, and other names of the stage."""
    names: dict[str, list[str]] = {}
    for row in outcome.rows:
        names.setdefault(row.config.row.stage, []).append(row.config.name)
    for key, rows in names.items():
        stage = STAGES[key]
        whose = "" if all(name.startswith(stage.title) for name in rows) else f", in {joined_names(rows)}"
        cut = {row.config.mesh.group for row in outcome.rows if row.config.row.stage == key}
        yield stage.title, f"{stage.also}{whose}: {shares(stage, *sorted(cut))}"


def shares(stage: Stage, *ranks: int) -> str:
    """The share of each model state that a rank keeps, in words, for these numbers of sharding ranks.

    >>> shares(STAGES["zero2"], 4)
    'keeps 1/4 of gradients and optimizer state, all weights'
    >>> shares(STAGES["zero3"], 2, 4)
    'keeps 1/2 or 1/4 of all, gathers weights for use'
    """
    cut = [STATES[kind.name] for kind in KINDS if kind.name in stage.sharded]
    whole = [STATES[kind.name] for kind in KINDS if kind.name not in stage.sharded]
    share = " or ".join(f"1/{each}" for each in ranks)
    if not cut:
        return f"every rank keeps all {joined(whole)}"
    return f"keeps {share} of {joined(cut)}, all {joined(whole)}" if whole else (
        f"keeps {share} of all, gathers weights for use")
