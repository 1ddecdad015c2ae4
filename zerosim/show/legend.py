"""The legend of the main table: the meaning of its headings, marks and names, one line each; and the table's bars.

A bar has a rank's model states side by side, distinguished by shades where there is no colour. Bars come in few widths
(32, 16 or 8 columns for kept bytes; 18, 12 or 6 for sent bytes), so that halves, quarters and thirds are whole columns.
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from zerosim.core.words import grouped, in_one_unit, joined, joined_names
from zerosim.show.columns import TERMINAL, WRONG, shown_in, why_peaks_stay
from zerosim.show.grid import Column, show_words
from zerosim.show.run_document import KIND_NAMES, RowDocument, RunDocument, StageWords, unit_of

KIND_WORDS = {kind: "optimizer state" if kind == "optimizer" else name for kind, name in KIND_NAMES.items()}
"""The names of kinds of memory in sentences."""


def show_legend(console: Console, run: RunDocument, table: Sequence[Column]) -> None:
    """Print the meaning of everything in a table of these columns."""
    there = " ".join(str(words) for column in table for words in [column.heading, *column.cells])
    found = legend(run, bars="━" in there)
    entries = [*of_stages(run), *((key, words) for key, words in found if key in there)]
    width = max((len(key) for key, _ in entries), default=0)
    for key, words in entries:
        show_words(console, words, key=f"{key:<{width}}  ", style="dim")


def legend(run: RunDocument, *, bars: bool) -> Iterator[tuple[str, str | Text]]:
    """Each heading or mark, and its meaning."""
    yield "same bits", meaning_of_bits(run)
    for figure in shown_in(TERMINAL, run.rows) if run.steps else ():
        match figure.key:
            case "kept_bytes":
                yield "keeps", meaning_of_kept(run, bars=bars)
            case "sent_bytes":
                yield "sends", meaning_of_sent(run)
            case "peak_bytes":
                yield figure.heading, ". ".join(filter(None, [figure.meaning, why_peaks_stay(run.rows)]))
            case _:
                yield figure.heading.partition("\n")[0], figure.meaning
    yield WRONG, "not what the formula says"


def meaning_of_bits(run: RunDocument) -> str:
    """The meaning of the column of bits: the compared arrays and their reference."""
    what = "loss, weights, gradients and optimizer state after every step"
    if not run.steps:
        what = "the initial weights"
    if run.compared_with == {"one process"}:
        return f"{what}, compared with those of one process that trains alone"
    return f"{what}, compared with those of the first row that adds in the same order"


def meaning_of_kept(run: RunDocument, *, bars: bool) -> Text:
    """The meaning of the column of kept bytes: its kinds, with their shades in bars."""
    kinds = [Text.assemble((f"{kind.shade} " * bars, kind.colour), KIND_WORDS[kind.name]) for kind in STATE_BARS]
    apart = Text("  " if bars else ", ")
    uneven = any(len({str(rank["resting_bytes"]) for rank in row.found["memory"]}) > 1 for row in run.rows)
    where = " on the device" * run.offloads + ", on the rank with the highest peak" * uneven
    copies = ", with float32 copies of weights" * run.precision.mixed
    return Text(f"between steps{where}: ").append(apart.join(kinds)).append(copies)


def meaning_of_sent(run: RunDocument) -> str:
    """The volume of each stage as a multiple of one all-gather of all weights."""
    if run.ranks == 1:
        return "one rank sends nothing"
    if run.splits_models:
        return "bytes per rank and step, those of the model's own collectives included"
    unit, rows = unit_of(run.rows), run.rows
    once = run.gathering_bytes
    evenly = all(len({rank["sent_bytes"] for rank in row.found["traffic"]}) == 1 for row in rows)
    multiples = [f"{in_units(row, once):.4g}× that" for row in rows]
    names = [row.name for row in rows]
    by_title = dict.fromkeys((row.stage.title if row.stage else row.name, each)
                             for row, each in zip(rows, multiples, strict=True))
    if len({title for title, _ in by_title}) == len(by_title):
        names, multiples = [list(each) for each in zip(*by_title, strict=True)]
    whose = multiples[0] if len(set(multiples)) == 1 else grouped(names, multiples)
    gathered, whole = in_one_unit([once, run.weights_bytes], unit)
    mean = "" if evenly else ", the mean over all"
    return (
        f"bytes per rank and step{mean}. One all-gather of all weights: {gathered} {unit.name}; a step: {whose}. "
        f"(Papers write P (N−1)/N: P = {whole} {unit.name} of weights, N = {run.ranks} ranks.)"
    )


def in_units(row: RowDocument, once: int) -> float:
    """The volume of a step in all-gathers of all weights, the mean over ranks: as due if that holds, else counted."""
    return float(row.found["volume"]) if row.found["traffic_holds"] else row.sent_bytes / max(once, 1)


def of_stages(run: RunDocument) -> Iterator[tuple[str, str]]:
    """The states that a rank keeps in each stage, and other names of the stage."""
    rows: dict[str, list[RowDocument]] = {}
    for row in run.all_rows:
        rows.setdefault(row.found["stage"], []).append(row)
    for key, found in rows.items():
        stage, names = found[0].stage, [row.name for row in found]
        if stage is not None:
            whose = "" if all(name.startswith(stage.title) for name in names) else f", in {joined_names(names)}"
            yield stage.title, f"{stage.also}{whose}: {shares(stage, *run.sharding_ranks(key))}"


def shares(stage: StageWords, *ranks: int) -> str:
    """The share of each model state that a rank keeps, in words, for these numbers of sharding ranks.

    >>> shares(StageWords("Stage II", "ZeRO-2", ("gradients", "optimizer")), 4)
    'keeps 1/4 of gradients and optimizer state, all weights'
    """
    cut = [KIND_WORDS[kind.name] for kind in STATE_BARS if kind.name in stage.sharded]
    whole = [KIND_WORDS[kind.name] for kind in STATE_BARS if kind.name not in stage.sharded]
    share = " or ".join(f"1/{each}" for each in ranks)
    if not cut:
        return f"every rank keeps all {joined(whole)}"
    return f"keeps {share} of {joined(cut)}, all {joined(whole)}" if whole else (
        f"keeps {share} of {joined(cut)}, gathers weights for use")


class StateBar(NamedTuple):
    """The style of one kind of model state; without colour its shade identifies it."""

    name: str
    shade: str
    colour: str


STATE_BARS = (
    StateBar("parameters", "█", "blue"),
    StateBar("gradients", "▓", "yellow"),
    StateBar("optimizer", "░", "green"),
)


def stacked(counts: Sequence[int | Fraction], whole: int | Fraction, room: int) -> Text:
    """One bar with the count of each of `STATE_BARS`; `whole` fills all of the room, equal counts are equally long.

    A positive count has at least a column; the longest is shortened if the sum would be longer than the room.

    >>> stacked([1, 1, 2], whole=56, room=56).plain, stacked([70, 1, 1], whole=72, room=8).plain
    ('█▓░░', '██████▓░')
    """
    lengths = [max(round(count * room / max(whole, 1)), int(count > 0)) for count in counts]
    longest = lengths.index(max(lengths))
    lengths[longest] -= max(sum(lengths) - room, 0)
    return Text.assemble(*(
        (kind.shade * length, kind.colour) for kind, length in zip(STATE_BARS, lengths, strict=True)))


def bar(count: float, whole: float, room: int) -> Text:
    """The bar of a count; `whole` fills all of the room, and a positive count has at least a column.

    >>> bar(2, 3, 6).plain, bar(0, 3, 6).plain
    ('━━━━', '')
    """
    return Text("━" * max(round(count * room / whole), 1) if count else "", style="cyan")
