"""The figures of a run, declared once: columns of the terminal's tables and of the page, facts below them, `rows()`.

A figure that follows from the document needs a line of `FIGURES` and no other. A figure that training measures has its
heading in its field of `Measurement` and needs no line here: it is a fact, said once if all rows share it.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from operator import attrgetter
from typing import Any

from zerosim.core.words import KEPT, ON_HOST, TESTS, ByteUnit, in_one_unit, in_unit, spread
from zerosim.core.words import measured as in_words
from zerosim.observe.memory import MEMORY_KINDS
from zerosim.show.document import peaks, rests
from zerosim.show.run_document import RowDocument, RunDocument, unit_of
from zerosim.training.measurement import Measurement
from zerosim.verdict.pipelines import bubble, held

TERMINAL, VERBOSE, PAGE = "terminal", "verbose", "page"
"""The tables."""
WRONG = "≠"
"""The mark before a figure that is not the one due."""


def traffic_is_wrong(row: RowDocument) -> bool:
    return not row.found["traffic_holds"]


def kept_is_wrong(row: RowDocument) -> bool:
    return not all(map(rests, row.judged_memory))


@dataclass(frozen=True)
class Figure:
    """One figure of a row, and the tables that show it."""

    key: str
    """Its key in `rows()`."""
    heading: str
    """Its heading, in one line or two; the unit of bytes follows."""
    meaning: str
    value: Callable[[RowDocument], Any]
    tables: frozenset[str] = frozenset()
    of_ranks: Callable[[RowDocument], Sequence[float]] | None = None
    """The values of all ranks, ascending, if tables show the least and the most."""
    wrong: Callable[[RowDocument], bool] = lambda row: False
    """Whether it differs from the figure due; a figure for which nothing is due never does."""
    if_any: bool = False
    """Whether it is shown only if some row has more than nothing."""

    @property
    def in_bytes(self) -> bool:
        return self.key.endswith("_bytes")

    def title(self, unit: ByteUnit) -> str:
        """The heading with the unit of bytes: below one line, or after two."""
        between = ", " if "\n" in self.heading else "\n"
        return f"{self.heading}{between}{unit.name}" if self.in_bytes else self.heading

    def name(self, unit: ByteUnit) -> str:
        """The heading in one line."""
        words = self.heading.replace("\n", " ")
        return f"{words}, {unit.name}" if self.in_bytes else words

    def cells(self, rows: Sequence[RowDocument], unit: ByteUnit, *, spreads: bool = False) -> list[str]:
        """The figure of each row; with `spreads` the least and the most of its ranks."""
        if self.of_ranks is not None and (spreads or not self.in_bytes):
            ranks = [self.of_ranks(row) for row in rows]
            words = [[in_unit(round(each), unit) if self.in_bytes else f"{each:.0f}" for each in of] for of in ranks]
            return [spread(each or ["–"]) for each in words]
        values = [self.value(row) for row in rows]
        if self.in_bytes:
            return in_one_unit(values, unit)
        return ["–" if each is None else f"{each:.4g}" if isinstance(each, float) else str(each) for each in values]

    def marked(self, rows: Sequence[RowDocument], unit: ByteUnit) -> list[str]:
        """The figure of each row, with a mark if it is wrong."""
        return [WRONG * self.wrong(row) + cell for row, cell in zip(rows, self.cells(rows, unit), strict=True)]


def kept_figure(kind: str) -> Figure:
    """The bytes of one model state between steps."""
    return Figure(
        f"{'weights' if kind == 'parameters' else kind}_bytes", KEPT[kind],
        f"{KEPT[kind]}{' state' * (kind == 'optimizer')} that a rank keeps on the device between steps",
        lambda row: row.fullest["resting_bytes"].get(kind, 0), frozenset({PAGE}), wrong=kept_is_wrong)


FIGURES = (
    Figure(
        "layout", "layout",
        "ranks of one copy of the model (tp: tensor, cp: context, ep: expert, pp: pipeline), the stage, its ranks",
        lambda row: row.found.get("layout", ""), frozenset({TERMINAL, PAGE}), if_any=True),
    Figure(
        "kept_bytes", "each rank\nkeeps", "model states that a rank keeps on the device between steps",
        lambda row: sum(row.fullest["resting_bytes"].get(kind, 0) for kind in MEMORY_KINDS[:3]), frozenset({TERMINAL}),
        wrong=kept_is_wrong),
    *map(kept_figure, MEMORY_KINDS[:3]),
    Figure(
        "host_bytes", ON_HOST, "offloaded states between steps, and offloaded activations at the peak",
        lambda row: sum(row.kept_on_host.values()), frozenset({TERMINAL, PAGE}),
        wrong=lambda row: not row.on_host_as_due, if_any=True),
    Figure(
        "sent_bytes", "sends\na step", "bytes that a rank sends in a step, the mean over ranks",
        attrgetter("sent_bytes"), frozenset({TERMINAL, VERBOSE, PAGE}), of_ranks=lambda row: row.per_step("sent_bytes"),
        wrong=traffic_is_wrong),
    Figure(
        "between_bytes", "to other hosts", "those bytes that leave the host", lambda row: row.mean("between_bytes"),
        frozenset({VERBOSE, PAGE}), of_ranks=lambda row: row.per_step("between_bytes"), wrong=traffic_is_wrong,
        if_any=True),
    Figure(
        "volume", "volume,\nP (N−1)/N", "those bytes by formula; P: bytes of all weights, N: ranks",
        lambda row: row.found["volume"], frozenset({VERBOSE, PAGE}), wrong=traffic_is_wrong),
    Figure(
        "messages", "messages", "messages that a rank sends in a step",
        lambda row: round(max(row.per_step("messages"), default=0)), frozenset({VERBOSE, PAGE}),
        of_ranks=lambda row: row.per_step("messages"), wrong=traffic_is_wrong),
    Figure(
        "peak_bytes", "peak", "largest memory of a rank at any time, with activations and messages",
        lambda row: row.fullest["peak_bytes"]["total"], frozenset({TERMINAL, PAGE}),
        wrong=lambda row: not all(map(peaks, row.judged_memory))),
)


MEASURED = {each.name: each.metadata["heading"] for each in fields(Measurement) if each.metadata.get("heading")}
"""The headings of facts that training measures, by their keys in the document and in `rows()`."""


def shown_in(table: str, rows: Sequence[RowDocument]) -> list[Figure]:
    """The figures of a table of these rows."""
    return [each for each in FIGURES if table in each.tables and not (each.if_any and not any(map(each.value, rows)))]


def facts(run: RunDocument) -> dict[str, list[str]]:
    """The facts that tables state once if all rows share them: each fact, and its words for each row."""
    rows = [row.found for row in run.rows]
    found: dict[str, list[str]] = {"steps": [f"{run.steps:,}" for _ in rows]}
    if run.steps:
        found["final loss"] = [f"{float(row['losses'][-1]):.4g}" for row in rows]
    for what in ("weights", "gradients"):
        errors = [row.get("wire_errors", {}).get(what) for row in rows]
        if any(errors):
            found[f"error of {what} as codes"] = [as_codes(error) for error in errors]
    measure = run.document.get("test_measure")
    if measure is not None and all(row["test"] is not None for row in rows):
        found[TESTS[measure]] = [in_words(measure, float(row["test"])) for row in rows]
    for key, heading in MEASURED.items():
        if any(row.get(key) for row in rows):
            found[heading] = [json.dumps(row.get(key), ensure_ascii=False) for row in rows]
    if any(row.get("passes") for row in rows):
        words = [*map(scheduled, run.rows)]
        found["bubble"] = [idle for idle, _ in words]
        found["micro-batches that the ranks of a pipeline hold"] = [most for _, most in words]
    if any(each["recomputation"] for row in rows for each in row.get("operations", [])):
        found["floating-point operations"] = [f"×{recomputed(row['operations']):.3g}" for row in rows]
    if all(row["weights_sha256"] for row in rows):
        found["weights SHA-256"] = [row["weights_sha256"] for row in rows]
    return found


def scheduled(row: RowDocument) -> tuple[str, str]:
    """The bubble of a row's first pipeline, and the activations that its ranks hold at most, in words."""
    most = ", ".join(str(held(each)) for each in row.passes)
    return (f"{float(bubble(row.passes)):.3g} of the time", most) if row.passes else ("none", "–")


def as_codes(error: Mapping[str, float | None] | None) -> str:
    """
    >>> as_codes({"relative": 0.00781, "ulps": 65536, "bits": 7.0}), as_codes(None)
    ('0.00781', 'none')
    """
    relative = None if error is None else error.get("relative")
    return "none" if relative is None else f"{float(relative):.3g}"


def recomputed(operations: Sequence[Mapping[str, int]]) -> float:
    """The ratio of all matrix products of all ranks to those of forward and backward alone.

    >>> recomputed([{"forward": 2, "backward": 4, "recomputation": 2}])
    1.3333333333333333
    """
    whole = sum(sum(each.values()) for each in operations)
    return whole / max(sum(each["forward"] + each["backward"] for each in operations), 1)


def why_peaks_stay(rows: Sequence[RowDocument]) -> str:
    """Why peaks do not fall from a stage to the next, which keeps less; empty if they do."""
    pairs = [(one, other) for one, other in pairwise(rows) if stays(one, other)]
    if not pairs:
        return ""
    unit, (one, other) = unit_of(rows), pairs[-1]
    peak, kept = other.fullest["peak_bytes"]["total"], sum(other.fullest["resting_bytes"].values())
    return (f"{other.name} does not lower the peak of {one.name}: beside the states that it keeps, a rank holds whole "
            f"weights or gradients of a unit (gradients of all units, if several micro-batches are added before the "
            f"reduction), activations and messages ({in_unit(peak - kept, unit)} of {in_unit(peak, unit)} {unit.name})")


def stays(one: RowDocument, other: RowDocument) -> bool:
    """Whether a row keeps less than the one before it, by a stage that shards more, and has no lower peak."""
    shards_more = one.stage and other.stage and {*one.stage.sharded} < {*other.stage.sharded}
    kept, peaks = ([sum(row.fullest["resting_bytes"].values()) for row in (one, other)],
                   [row.fullest["peak_bytes"]["total"] for row in (one, other)])
    return bool(shards_more) and kept[1] < kept[0] and peaks[1] >= peaks[0]
