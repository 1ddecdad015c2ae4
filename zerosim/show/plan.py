"""A plan in the terminal, at the Python prompt, in notebooks, as CSV, and as a page with the pictures of a step.

A column of its table is one of `FIGURES`, which the terminal, the page and the legend read.
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import cast

from rich.console import Console

from zerosim.core.words import ON_HOST, common_unit, duration, plural
from zerosim.core.words import toml as in_toml
from zerosim.observe.ledger import MEMORY_KINDS, Curve
from zerosim.plan.planned_row import PlannedRow, flat
from zerosim.plan.planning import Plan
from zerosim.scenario import resolved
from zerosim.show import pictures
from zerosim.show.columns import Figure
from zerosim.show.document import MemoryDocument, RowDocument, trace_document
from zerosim.show.grid import Column, show_grid, show_words
from zerosim.show.page import Head, html, note, picture, step, table
from zerosim.show.shown import Page, Shown, printed

MOST_DRAWN = 12
"""The most rows whose step is drawn; all rows are in the table."""
INTERVALS = 1_000
"""The intervals of a step of which a picture of its memory has the fullest moment and the last one."""
PROMPT = frozenset({"prompt"})
"""The short table, which is the `repr` of a plan; the terminal and the page have all figures."""
FIGURES = (
    Figure("peak_bytes", "memory", "on each device at the peak", lambda row: row.peak_bytes, PROMPT),
    Figure("host_bytes", ON_HOST, "the same of offloaded states, for each device", lambda row: row.host_bytes,
           if_any=True),
    Figure("missing", "fits", "or the GB beyond the memory of a device", lambda row: row.missing_bytes,
           PROMPT, words=lambda missing: f"+{missing / 1e9:.1f}" if missing else "yes"),
    Figure("step", "step", "time of one step", lambda row: row.step_seconds, PROMPT, words=duration),
    Figure("compute", "compute", "forward, backward and recomputation", lambda row: row.seconds["compute"],
           words=duration),
    Figure("update", "update", "", lambda row: row.seconds["update"], words=duration),
    Figure("communication", "sends for", "", lambda row: row.seconds["communication"], words=duration),
    Figure("exposed", "waits", "exposed communication: time in which the device does not compute",
           lambda row: row.seconds["exposed_communication"], PROMPT, words=duration),
    Figure("bubble", "bubble", "share of the step in which the ranks of a pipeline wait for each other's passes",
           lambda row: row.rehearsal.bubble, words="{:.1%}".format, if_any=True),
    Figure("mfu", "MFU", "operations that the model needs, over the device's peak rate: 6 for a token and each "
                         "parameter that it meets", lambda row: row.mfu, PROMPT, words="{:.1%}".format),
    Figure("hfu", "HFU", "the same of executed matrix products; the lookup of an embedding, a norm and a bias have "
                         "none", lambda row: row.hfu, words="{:.1%}".format),
    Figure("data", "{data}/s\na device", "", lambda row: row.tokens_per_second, words="{:,.0f}".format),
)
OF_A_RUN = {"seconds": ("days", 86_400, "{:,.2f}"), "device_hours": ("device-\nhours", 1, "{:,.0f}"),
            "kilowatt_hours": ("kWh", 1, "{:,.0f}"), "cost": ("cost", 1, "{:,.0f}")}
"""The columns of a run of so many tokens: its time, and what it takes; with their units and formats."""


def columns(plan: Plan, shown: Sequence[Figure]) -> list[Column]:
    """The columns of a plan's table, bytes in each in one unit."""
    runs = [plan.run.of(row) for row in plan.rows] if plan.run else []
    return [*(Column(figure.title(unit).format(data=plan.rows[0].data_unit), figure.cells(plan.rows, unit))
              for figure in shown for unit in [common_unit(max(map(figure.value, plan.rows)))]), *(
        Column(heading, [words.format(run[name] / unit) if name in run else "" for run in runs])
        for name, (heading, unit, words) in OF_A_RUN.items() if any(name in run for run in runs))]


def figures(rows: Sequence[PlannedRow]) -> list[Figure]:
    return [figure for figure in FIGURES if not figure.if_any or any(map(figure.value, rows))]


def show_in_short(console: Console, plan: Plan) -> None:
    """Show the short table of a plan, and its verdict."""
    show_grid(console, plan.names, columns(plan, [figure for figure in FIGURES if figure.tables]))
    console.print(plan.verdict, soft_wrap=True)


@dataclass(frozen=True, repr=False)
class ShownPlan(Shown):
    """A plan that displays itself. Its words are made when they are asked for: the search for advice takes seconds."""

    verdict: str = field(init=False, default=cast("str", cached_property(lambda self: self.subject.verdict)))
    about: str = field(init=False, default=cast("str", cached_property(
        lambda self: printed(lambda console: show_in_short(console, self.subject)))))


def shown_plan(plan: Plan, command: str = "zs.plan") -> Shown:
    """A plan that displays itself; the rows are the document's, memory in `…_bytes`; `command` repeats it."""
    return ShownPlan(
        plan, plan.passed, show=lambda console: show_plan(console, plan), make_document=plan.document,
        rows_of=lambda document: [flat(row) for row in document["rows"]],
        make_page=lambda: Page(plan_page(plan, command), f"all of {plan.scenario.title or 'a plan'}"))


def show_plan(console: Console, plan: Plan) -> None:
    """Show a plan: the table, then sentences."""
    show_words(console, plan.setting, style="dim")
    show_grid(console, plan.names, columns(plan, figures(plan.rows)))
    for figure in figures(plan.rows):
        if figure.meaning:
            show_words(console, str(figure.meaning), key=f"{figure.heading:<8}  ", style="dim")
    for words in plan.notes:
        show_words(console, words)
    if plan.best is None or len(plan.rows) > 1:
        show_words(console, plan.verdict, style="bold")
    for broken in plan.broken:
        show_words(console, f"FAILED: {broken}", style="bold red")
    if plan.passed and any(claim.broken is not None for claim in plan.claims):
        ranks = plural(plan.scenario.world.ranks, "rank")
        show_words(console, f"PASSED: all claims hold on {ranks}", style="bold")


def csv_of(plan: Plan) -> str:
    """A line for each row: each swept key in its own column, then every figure of `zerosim plan --json`."""
    documents = plan.document()["rows"]
    blank = {key: "" for row in documents for key in row["swept"]}
    rows = [blank | row.pop("swept") | flat(row) for row in documents]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def plan_page(plan: Plan, command: str) -> str:
    """The HTML of a plan, which `command` repeats.

    Raises `UsageError` if the extra that draws pictures is missing.
    """
    names, rows, shown = plan.names, drawn_rows(plan), figures(plan.rows)
    device_bytes = int(plan.rows[0].cluster.device.memory)
    head = Head(plan.scenario.title or "A plan without a title", [
        plan.verdict, *(f"FAILED: {words}" for words in plan.broken)], bool(plan.passed and plan.best),
        f"{plan.scenario.caption}\n{plan.setting}".strip())
    return html(head, [
        ("table", "Memory and time of each row", [
            table(names, columns(plan, shown)), {"lines": plan.notes},
            note("; ".join(f"{figure.heading}: {figure.meaning}" for figure in shown if figure.meaning)),
            *[note(f"Pictures have the first {MOST_DRAWN} of these {len(names)} rows.")] * (len(names) > MOST_DRAWN),
            picture(pictures.kept(rows, device_bytes, peak=True), "memory of a rank at the peak, by kind"),
            picture(pictures.kept(rows), "memory of a rank between steps, by kind")]),
        step(rows, device_bytes=device_bytes),
        ("origin", "How to reproduce it", [
            {"text": "This was planned by"}, {"code": command},
            {"code": in_toml(resolved(plan.scenario)), "fold": "The resolved scenario, with all defaults."}])])


def drawn_rows(plan: Plan) -> list[RowDocument]:
    """The data of the rows whose step is drawn, for the pictures of a run; the planned rank stands for all."""
    rows = []
    for name, row in list(zip(plan.names, plan.rows, strict=True))[:MOST_DRAWN]:
        trace = replace(row.trace, steps=[replace(step, memory=thinned(step.memory)) for step in row.trace.steps])
        peak = {str(kind): row.rehearsal.peak[kind] for kind in MEMORY_KINDS} | {"total": row.peak_bytes}
        resting = {str(kind): row.rehearsal.resting[kind] for kind in MEMORY_KINDS}
        rows.append(RowDocument(
            stage=str(row.config.stage_key), name=name, hosts=[0] * row.config.directions.ranks,
            model={"title": row.config.model.words, "parameters": row.config.model.count},
            memory=[MemoryDocument(rank=0, peak_bytes=peak, resting_bytes=resting)], trace=trace_document(trace)))
    return rows


def thinned(curve: Curve) -> Curve:
    """The fullest moment and the last one of each of `INTERVALS` intervals of time.

    >>> thinned([(at, {"buffers": -at % 7}) for at in range(7_000)])[:4]
    [(1, {'buffers': 6}), (6, {'buffers': 1}), (8, {'buffers': 6}), (13, {'buffers': 1})]
    """
    fullest, last = dict[int, tuple[int, dict[str, int]]](), dict[int, tuple[int, dict[str, int]]]()
    begin, end = curve[0][0], curve[-1][0]
    for moment in curve:
        interval = (moment[0] - begin) * INTERVALS // (end - begin + 1)
        fullest[interval] = max(fullest.get(interval, moment), moment, key=lambda moment: sum(moment[1].values()))
        last[interval] = moment
    return sorted(dict([*last.values(), *fullest.values()]).items())
