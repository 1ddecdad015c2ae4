"""What views of a run show, declared once: the terminal's tables and legend, the page, and `rows()` read it here.

A shown figure is a line of `FIGURES`, a fact a line of `facts`; no other file of the package names it.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zerosim.core import words as in_words
from zerosim.core.allocation import MODEL_STATES
from zerosim.core.precisions import PRECISIONS
from zerosim.core.words import KEPT, ON_HOST, TESTS, ByteUnit, grouped, in_one_unit, in_unit, joined_names, spread
from zerosim.observe.ledger import MEMORY_KINDS
from zerosim.show.document import RowDocument, RunDocument, unit_of
from zerosim.show.grid import SHADES
from zerosim.verdict.pipelines import bubble, held

TERMINAL, VERBOSE, PAGE = "terminal", "verbose", "page"
"""The tables."""
WRONG = "≠"
"""The mark before a figure that is not the one due."""
KIND_NAMES: dict[str, str] = {kind: KEPT.get(kind, kind) for kind in MEMORY_KINDS}
"""The names of kinds of memory in headings and pictures."""
KIND_WORDS = KIND_NAMES | {"optimizer": "optimizer state"}
"""The same in sentences."""


@dataclass(frozen=True)
class Figure:
    """One figure of a row of a run or of a plan, and the tables that show it."""

    key: str
    """Its key in `rows()` of a run; figures of bytes end in `_bytes`."""
    heading: str
    """Its heading, in one line or two; the unit of bytes follows."""
    meaning: str | Callable[[RunDocument], str]
    """Its meaning in the legends; empty if the heading says it."""
    value: Callable[[Any], Any]
    tables: frozenset[str] = frozenset()
    by_rank: bool = False
    """Whether tables show the least and the most of a step's traffic, not its mean."""
    due: str = ""
    """The word in `RowDocument.wrong` that marks this figure; empty if no formula tells it."""
    if_any: bool = False
    """Whether it is shown only if some row has more than nothing."""
    bar: Callable[[RowDocument], Mapping[str, int]] | None = None
    """The parts of the bar beside it, by the keys of `SHADES`."""
    words: Callable[[Any], str] = lambda value: f"{value:.4g}" if isinstance(value, float) else str(value)
    """The words of a value that is not in bytes."""

    @property
    def in_bytes(self) -> bool:
        return self.key.endswith("_bytes")

    def title(self, unit: ByteUnit) -> str:
        """The heading in two lines, with the unit of bytes."""
        return f"{self.heading}{', ' if chr(10) in self.heading else chr(10)}{unit.name}" if self.in_bytes else (
            self.heading)

    @property
    def name(self) -> str:
        """The heading in one line."""
        return self.heading.replace("\n", " ")

    def cells(self, rows: Sequence[Any], unit: ByteUnit, *, spreads: bool = False) -> list[str]:
        """The figure of each row, with a mark if it is wrong; with `spreads` the least and the most of its ranks."""
        if self.by_rank and (spreads or not self.in_bytes):
            words = [spread([in_unit(round(count), unit) if self.in_bytes else f"{count:.0f}"
                             for count in row.per_step(self.key)] or ["–"]) for row in rows]
        elif self.in_bytes:
            words = in_one_unit([self.value(row) for row in rows], unit)
        else:
            words = [*map(self.words, map(self.value, rows))]
        return [WRONG * bool(self.due and self.due in row.wrong) + cell for row, cell in zip(rows, words, strict=True)]


def of_kind(figure: str, kind: str) -> Callable[[Any], int]:
    """The bytes of one kind on the rank with the highest peak."""
    return lambda row: int(getattr(row.fullest, figure).get(kind, 0))


def meaning_of_kept(run: RunDocument) -> str:
    """The states that are kept, with the signs of their bars."""
    uneven = any(len({str(rank.resting_bytes) for rank in row.memory}) > 1 for row in run.rows)
    where = " on the device" * any(row.fullest.on_host for row in run.rows)
    where += ", on the rank with the highest peak" * uneven
    states = "  ".join(f"{SHADES[kind][0]} {KIND_WORDS[kind]}" for kind in MODEL_STATES)
    copies = ", with float32 copies of weights" * PRECISIONS[run.scenario["train"]["precision"]].mixed
    return f"between steps{where}: {states}{copies}"


def meaning_of_sent(run: RunDocument) -> str:
    """The volume of each row as a multiple of one all-gather of all weights."""
    if run.ranks == 1:
        return "one rank sends nothing"
    if any(row.layout for row in run.rows):
        return "bytes per rank and step, those of the model's own collectives included"
    unit, first = unit_of(run.rows), run.rows[0]
    weights_bytes = int(first.model["parameters"]) * PRECISIONS[run.scenario["train"]["precision"]].weights.itemsize
    once, due = weights_bytes * (run.ranks - 1) // run.ranks, sum(rank.due.sent_bytes for rank in first.traffic)
    if due and first.volume and first.steps_here and first.updates == run.steps:  # with padding
        once = round(due / len(first.traffic) / first.steps_here / first.volume)
    multiples = [f"{row.volume if row.traffic_holds else row.most('sent_bytes') / max(once, 1):.4g}× that"
                 for row in run.rows]
    volume = multiples[0] if len({*multiples}) == 1 else grouped([row.name for row in run.rows], multiples)
    evenly = all(len({rank.sent_bytes for rank in row.traffic}) == 1 for row in run.rows)
    gathered, whole = in_one_unit([once, weights_bytes], unit)
    return (f"bytes per rank and step{'' if evenly else ', of that which sends most'}. One all-gather of all weights: "
            f"{gathered} {unit.name}; a step: {volume}. (Papers write P (N−1)/N: P = {whole} {unit.name} of weights, "
            f"N = {run.ranks} ranks.)")


FIGURES = (
    Figure(
        "layout", "layout",
        "ranks of one copy of the model (tp: tensor, cp: context, ep: expert, pp: pipeline), the stage, its ranks",
        lambda row: row.layout, frozenset({TERMINAL, PAGE}), if_any=True),
    Figure(
        "kept_bytes", "each rank\nkeeps", meaning_of_kept, lambda row: sum(row.fullest.resting_bytes.values()),
        frozenset({TERMINAL}), due="kept", bar=lambda row: row.fullest.resting_bytes),
    *(Figure(
        f"{KEPT[kind]}_bytes", KEPT[kind], f"{KIND_WORDS[kind]} that a rank keeps on the device between steps",
        of_kind("resting_bytes", kind), frozenset({VERBOSE, PAGE}), due="kept",
    ) for kind in MODEL_STATES),
    Figure(
        "host_bytes", ON_HOST, "offloaded states between steps, and offloaded activations at the peak",
        lambda row: sum(row.fullest.on_host.values()), frozenset({TERMINAL, PAGE}), due="host",
        if_any=True),
    Figure(
        "sent_bytes", "sends\na step", meaning_of_sent, lambda row: row.most("sent_bytes"),
        frozenset({TERMINAL, VERBOSE, PAGE}), by_rank=True, due="sent",
        bar=lambda row: {"sent": row.most("sent_bytes")}),
    Figure(
        "between_bytes", "to other hosts", "those bytes that leave the host", lambda row: row.most("between_bytes"),
        frozenset({VERBOSE, PAGE}), by_rank=True, due="sent", if_any=True),
    Figure(
        "volume", "volume,\nP (N−1)/N", "those bytes by formula; P: bytes of all weights, N: ranks",
        lambda row: row.volume, frozenset({VERBOSE, PAGE}), due="sent"),
    Figure(
        "messages", "messages", "messages that a rank sends in a step",
        lambda row: row.most("messages"), frozenset({VERBOSE, PAGE}),
        by_rank=True, due="sent"),
    Figure(
        "peak_bytes", "peak",
        "largest memory of a rank at any time: kept states, whole weights or gradients of a unit, activations and "
        "messages; due is what the same code takes on shapes, within bounds from the model's sizes",
        lambda row: row.fullest.peak_bytes["total"], frozenset({TERMINAL, PAGE}), due="peak"),
    *(Figure(
        f"{words}_peak_bytes", f"peak of\n{words}", f"largest memory of {KIND_WORDS[kind]} at any time",
        of_kind("peak_bytes", kind), frozenset({VERBOSE}), if_any=True,
    ) for kind, words in KIND_NAMES.items()),
    Figure(
        "padding_bytes", "padding", "bytes of padding among those that a rank keeps",
        lambda row: row.fullest.due.padding_bytes if row.fullest.due else 0, frozenset({VERBOSE}), if_any=True),
)


def shown_in(table: str, rows: Sequence[RowDocument]) -> list[Figure]:
    """The figures that a table of these rows has."""
    return [figure for figure in FIGURES
            if table in figure.tables and (not figure.if_any or any(map(figure.value, rows)))]


def bits(rows: Sequence[RowDocument]) -> list[str]:
    """Whether each row has the bits of the one that it is compared with, in a word."""
    return [{None: "–", True: "yes", False: "NO"}[row.equal] for row in rows]


def legend(run: RunDocument, figures: Sequence[Figure]) -> list[tuple[str, str]]:
    """The meaning of every heading and mark of a table with these figures."""
    what = "loss, weights, gradients and optimizer state after every step" if run.steps else "the initial weights"
    partner = ("one process that trains alone" if run.compared_with == {"one process"}
               else "the first row that adds in the same order")
    entries = [("same bits", f"{what}, compared with those of {partner}")] if run.compared_with else []
    entries += [(figure.name, figure.meaning if isinstance(figure.meaning, str) else figure.meaning(run))
                for figure in figures]
    wrong = any(figure.due in row.wrong for figure in figures for row in run.rows)
    return [*entries, *([(WRONG, "not what the formula says")] if wrong else [])]


def notes(run: RunDocument) -> list[str]:
    """The warnings about a run: keys and rows that do nothing, and losses that are no numbers."""
    warnings = in_words.ignored_in_words((row.name, row.ignored) for row in run.rows)
    if idle := [row.name for row in run.rows if run.steps and not row.steps_here]:
        warnings.append(f"No step was left to train in {joined_names(idle)}: the checkpoint is of the last one")
    if diverged := {row.name: lost(row) for row in run.rows if lost(row)}:
        warnings.append(f"The loss is not finite {grouped([*diverged], [*diverged.values()])}")
    return warnings


def lost(row: RowDocument) -> str:
    """Since which step the loss is not a finite number, in words; empty if the last one is."""
    finite = [step for step, loss in enumerate(row.losses, 1) if math.isfinite(loss)]
    last = max(finite, default=0)
    return f"since step {last + 1}" if last < len(row.losses) else ""


def plain_rows(run: RunDocument) -> list[dict[str, Any]]:
    """A plain dict for each row: `rows()` of an outcome."""
    return [{
        "name": row.name, "stage": row.stage, "equal": row.equal, "compared_with": row.compared_with,
        "final_loss": row.losses[-1] if row.losses else None, "test": row.test, "sample": row.sample,
        **{figure.key: figure.value(row) for figure in FIGURES},
        "hidden": row.trace and row.trace.hidden, "train_seconds": row.seconds["train"],
        "weights_sha256": row.weights_sha256,
    } for row in run.rows]


def facts(run: RunDocument) -> dict[str, list[str]]:
    """The facts that tables state once if all rows share them: each fact, and its words for each row."""
    words_of: dict[str, Callable[[RowDocument], str | None]] = {
        "steps": lambda row: f"{run.steps:,}",
        "final loss": lambda row: f"{row.losses[-1]:.4g} {lost(row)}".strip() if row.losses else None,
        "error of weights as codes": lambda row: as_codes(row, "weights"),
        "error of gradients as codes": lambda row: as_codes(row, "gradients"),
        TESTS.get(run.test_measure or "", ""): lambda row: (
            None if row.test is None else in_words.measured(str(run.test_measure), row.test)),
        "says": lambda row: row.sample and json.dumps(row.sample, ensure_ascii=False),
        "bubble": lambda row: f"{float(bubble(row.passes[0])):.3g} of the time" if row.passes else None,
        "micro-batches that the ranks of a pipeline hold": lambda row: ", ".join(
            str(held(rank)) for ranks in row.passes[:1] for rank in ranks),
        "floating-point operations": recomputed,
        "steps without an update, because gradients overflowed": lambda row: (
            f"{run.steps - row.updates:,}" if run.steps > row.updates else None),
        "addresses beyond the peak of rank 0's bytes": lambda row: None if row.fragmentation is None else " and ".join(
            f"{count:,} by {by.replace('_', ' ')}" for by, count in row.fragmentation.beyond_peak_bytes.items()),
        "weights SHA-256": lambda row: row.weights_sha256,
    }
    words = {what: [of(row) for row in run.rows] for what, of in words_of.items()}
    return {what: [word or "none" for word in of_rows] for what, of_rows in words.items() if any(of_rows)}


def as_codes(row: RowDocument, what: str) -> str | None:
    """The relative error of what was sent in a narrow format."""
    relative = (row.wire_errors.get(what) or {}).get("relative")
    return None if relative is None else f"{relative:.3g}"


def recomputed(row: RowDocument) -> str | None:
    """The ratio of all matrix products of all ranks to those of forward and backward alone, if some were repeated."""
    again = sum(rank["recomputation"] for rank in row.operations)
    once = sum(rank["forward"] + rank["backward"] for rank in row.operations)
    return f"×{1 + again / once:.3g}" if again else None
