"""A plan in the terminal, at the Python prompt, in notebooks, as CSV, and as a page with the pictures of a step.

A column of its table is one of `FIGURES`, which the terminal, the page and the legend read.
"""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import Any

from rich.console import Console

from zerosim.core.words import ON_HOST, common_unit, duration, ignored_in_words, in_unit, joined, joined_names, plural
from zerosim.core.words import toml as in_toml
from zerosim.observe.memory import MEMORY_KINDS
from zerosim.observe.trace import Curve
from zerosim.plan.planned_row import PlannedRow
from zerosim.plan.planning import Plan
from zerosim.plan.software import Software
from zerosim.scenario import resolved
from zerosim.show import pictures
from zerosim.show.document import MemoryDocument, RowDocument, trace_document
from zerosim.show.grid import Column, show_grid, show_words
from zerosim.show.page import Head, Section, html, note, picture, step, table
from zerosim.show.shown import Page, Shown, printed

MOST_DRAWN = 12
"""The most rows whose step is drawn; all rows are in the table."""
MOST_CHANGES = 1_000
"""The most changes of memory in a picture; a longer curve shows the largest value of each interval."""


@dataclass(frozen=True)
class PlanFigure:
    """A column of the table of a plan."""

    heading: str
    meaning: str
    """Its meaning in the legend, if the heading does not say it."""
    value: Callable[[PlannedRow], Any]
    words: Callable[[Any], str] | None = None
    """The words of a value; values without are bytes, in one unit, which stands in the heading."""
    if_any: bool = False
    """Whether it is shown only if some row has more than nothing."""
    at_the_prompt: bool = False
    """Whether the short table has it, too."""

    def column(self, rows: Sequence[PlannedRow]) -> Column:
        values, heading = [self.value(row) for row in rows], self.heading.format(data=unit_of_data(rows[0]))
        if self.words is not None:
            return Column(heading, [*map(self.words, values)])
        unit = common_unit(max(values))
        return Column(f"{heading}\n{unit.name}", [in_unit(value, unit) for value in values])


FIGURES = (
    PlanFigure("memory", "on each device at the peak", lambda row: row.peak_bytes, at_the_prompt=True),
    PlanFigure(ON_HOST, "the same of offloaded states, for each device", lambda row: row.host_bytes, if_any=True),
    PlanFigure("fits", "or the GB beyond the memory of a device", lambda row: row.missing_bytes,
               lambda missing: f"+{missing / 1e9:.1f}" if missing else "yes", at_the_prompt=True),
    PlanFigure("step", "time of one step", lambda row: row.step_seconds, duration, at_the_prompt=True),
    PlanFigure("compute", "forward, backward and recomputation", lambda row: row.compute_seconds, duration),
    PlanFigure("update", "", lambda row: row.update_seconds, duration),
    PlanFigure("sends for", "", lambda row: row.communication_seconds, duration),
    PlanFigure("waits", "exposed communication: time in which the device does not compute",
               lambda row: row.exposed_seconds, duration, at_the_prompt=True),
    PlanFigure("bubble", "share of the step in which the ranks of a pipeline wait for each other's passes",
               lambda row: row.found.bubble, "{:.1%}".format, if_any=True),
    PlanFigure("MFU", "operations that the model needs, over the device's peak rate: 6 for a token and each parameter "
                      "that it meets", lambda row: row.mfu, "{:.1%}".format, at_the_prompt=True),
    PlanFigure("HFU", "the same of executed matrix products; the lookup of an embedding, a norm and a bias have none",
               lambda row: row.hfu, "{:.1%}".format),
    PlanFigure("{data}/s\na device", "", lambda row: row.tokens_per_second, "{:,.0f}".format),
)


def figures(rows: Sequence[PlannedRow]) -> list[PlanFigure]:
    return [each for each in FIGURES if not (each.if_any and not any(map(each.value, rows)))]


def shown_plan(plan: Plan) -> Shown:
    """A plan that displays itself; the rows are the document's, memory in `…_bytes`."""
    def show_short(console: Console) -> None:
        show_grid(console, names_of(plan.rows), [each.column(plan.rows) for each in FIGURES if each.at_the_prompt])
        console.print(sentence(plan), soft_wrap=True)

    return Shown(
        plan, plan.passed, sentence(plan), printed(show_short),
        show=lambda console: show_plan(console, plan), make_document=plan.document,
        rows_of=lambda document: [flat(row) for row in document["rows"]],
        make_page=lambda: Page(plan_page(plan, "zs.plan"), f"all of {plan.scenario.title or 'a plan'}"))


def show_plan(console: Console, plan: Plan) -> None:
    """Show a plan: the table, then sentences."""
    show_words(console, setting(plan), style="dim")
    show_grid(console, names_of(plan.rows), [each.column(plan.rows) for each in figures(plan.rows)])
    for figure in figures(plan.rows):
        if figure.meaning:
            show_words(console, figure.meaning, key=f"{figure.heading:<8}  ", style="dim")
    for words in sentences(plan):
        show_words(console, words)
    show_sweep(console, plan)
    if plan.best is None or len(plan.rows) > 1:
        show_words(console, sentence(plan), style="bold")
    for broken in plan.broken:
        show_words(console, f"FAILED: {broken}", style="bold red")
    if plan.passed and any(claim.broken is not None for claim in plan.claims):
        ranks = plural(plan.scenario.world.ranks, "rank")
        show_words(console, f"PASSED: all claims hold on {ranks}", style="bold")


def sentences(plan: Plan) -> list[str]:
    """The bound of each row, the price of its collectives, its ignored keys, and the claims that are not judged."""
    named = [*zip(names_of(plan.rows), plan.rows, strict=True)]
    found = [f"{name}: {words}" for name, row in named
             for words in (row.bound + room(row), row.over_directions) if words]
    found += dict.fromkeys(row.pricing for row in plan.rows if row.pricing)
    found += [plan.search] if plan.search else ignored_in_words((name, row.config.ignored) for name, row in named)
    unjudged = [claim.title for claim in plan.claims if claim.broken is None]
    why = "Scenario checks skipped, because --ranks, --set or --sweep changed it"
    return [*found, f"{why}: {joined_names(unjudged)}"] if unjudged else found


def room(row: PlannedRow) -> str:
    """The memory that a fitting row leaves, if the allocator has a reserve, and the memory that this holds."""
    if not row.fits or row.reserved_bytes == row.peak_bytes:
        return ""
    left = (row.cluster.device.memory - row.peak_bytes) / 1e9
    return f"; fits with {left:.1f} GB to spare, and the allocator holds {row.reserved_bytes / 1e9:.1f} GB"


def names_of(rows: Sequence[PlannedRow]) -> list[str]:
    """The names of rows, with their ranks where these differ."""
    several = len({row.config.all_ranks for row in rows}) > 1 and not any(row.layout for row in rows)
    return [f"{row.name} on {row.config.all_ranks:,}" if several else row.name for row in rows]


def sentence(plan: Plan) -> str:
    """A sentence about the best row that fits, and the best one on the fewest devices."""
    best, fewest = plan.best, plan.fewest
    if best is None or fewest is None:
        return f"Nothing fits. {plan.advice}"
    names, speed = names_of(plan.rows), f"{unit_of_data(best)} a second on each"
    named = [f"{names[plan.rows.index(row)]}, {row.tokens_per_second:,.0f}" for row in (fewest, best)]
    if fewest.config.all_ranks < best.config.all_ranks:
        return f"Fewest devices that fit: {named[0]} {speed}; fastest: {named[1]}"
    several = len({row.config.all_ranks for row in plan.rows}) > 1
    return f"{'Fewest devices that fit, and fastest' if several else 'Best that fits'}: {named[1]} {speed} device"


def setting(plan: Plan) -> str:
    """The machine and the model of a plan, in words."""
    config = plan.rows[0].config
    return (f"{machine(plan.rows)}\n{config.model.words}, {config.in_one_piece.count:,} parameters, "
            f"{config.train.precision}, {config.train.optimizer}")


def machine(rows: Sequence[PlannedRow]) -> str:
    """The machine that a plan is for, in words; its software, if it is not that of the device's fitted runs."""
    cluster, ranks = rows[0].cluster, sorted({row.config.all_ranks for row in rows})
    links = [f"{cluster.inside.title} inside a host of {cluster.devices_per_host}"] * (cluster.devices_per_host > 1)
    links += [f"{cluster.between.title} between hosts"] * (ranks[-1] > cluster.devices_per_host)
    counts = plural(ranks[0], "rank") if len(ranks) == 1 else f"{joined([f'{each:,}' for each in ranks])} ranks"
    software = [cluster.software.title] * (cluster.software.title != Software().title)
    if reserve := cluster.software.reserve:
        software.append(f"{reserve:.0%} of the peak in the allocator's reserve")
    parts = [f"{counts} of {cluster.device.title}", ", ".join(links),
             f"collectives {'pipelined' if cluster.pipelined else 'as written'}", ", ".join(software)]
    return "; ".join(filter(None, parts))


def unit_of_data(row: PlannedRow) -> str:
    return "tokens" if row.config.model.task.tokens else "samples"


def show_sweep(console: Console, plan: Plan) -> None:
    """Show the speed of all rows of a sweep side by side, by the micro-batch or else the first swept key."""
    table: dict[str, dict[str, str]] = {}
    key = ""
    for row in plan.rows if not plan.search else ():
        keys = dict(each.split("=", 1) for each in row.swept)
        if not keys:
            return
        key = "train.micro_batch" if "train.micro_batch" in keys else next(iter(keys))
        heading, best = keys.pop(key), "*" * (row is plan.best)
        others = [f"{name.rsplit('.', 1)[-1]}={value}" for name, value in keys.items()]
        name = ", ".join([row.config.name, f"{row.config.all_ranks:,} ranks", *others])
        table.setdefault(name, {})[heading] = (
            f"{row.tokens_per_second:,.0f}{best}" if row.fits else f"+{row.missing_bytes / 1e9:.1f}")
    if table:
        show_words(console, f"{unit_of_data(plan.rows[0])}/s on each device by {key}; * is the best that fits, + what "
                            "is too much, in GB", style="dim")
        show_grid(console, [*table], [
            Column(heading, [cells.get(heading, "") for cells in table.values()])
            for heading in dict.fromkeys(heading for cells in table.values() for heading in cells)])


def csv_of(plan: Plan) -> str:
    """A line for each row: each swept key in its own column, then every figure of `zerosim plan --json`."""
    rows = [row.pop("swept") | flat(row) for row in plan.document()["rows"]]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), restval="", extrasaction="raise", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def flat(row: dict[str, Any]) -> dict[str, Any]:
    """A row of the document with nested dicts flattened.

    >>> flat({"name": "DDP", "memory": {"peak": 3, "resting": {"parameters": 1}}, "mfu": 0.5})
    {'name': 'DDP', 'peak_bytes': 3, 'resting_parameters_bytes': 1, 'mfu': 0.5}
    """
    found: dict[str, Any] = {}
    for key, value in row.items():
        if key == "memory":
            resting = {f"resting_{kind}": each for kind, each in value["resting"].items()}
            found |= {f"{kind}_bytes": each for kind, each in (value | resting).items() if kind != "resting"}
        elif isinstance(value, list):
            found |= {f"{key}_{name}": "; ".join(str(each[name]) for each in value) for name in value[0]}
        elif isinstance(value, dict):
            found[key] = "; ".join(f"{name}: {each}" for name, each in value.items())
        else:
            found[key] = value
    return found


def plan_page(plan: Plan, command: str) -> str:
    """The HTML of a plan, which `command` repeats.

    Raises `UsageError` if the extra that draws pictures is missing.
    """
    names, rows, shown = names_of(plan.rows), drawn_rows(plan), figures(plan.rows)
    device_bytes = int(plan.rows[0].cluster.device.memory)
    head = Head(plan.scenario.title or "A plan without a title", [
        sentence(plan), *(f"FAILED: {words}" for words in plan.broken)], bool(plan.passed and plan.best),
        f"{plan.scenario.caption}\n{setting(plan)}".strip())
    return html([head], [
        Section("table", "Memory and time of each row", [
            table(names, [each.column(plan.rows) for each in shown]), {"lines": sentences(plan)},
            note("; ".join(f"{each.heading}: {each.meaning}" for each in shown if each.meaning)),
            *[note(f"Pictures have the first {MOST_DRAWN} of these {len(names)} rows.")] * (len(names) > MOST_DRAWN),
            picture(pictures.peaks(rows, device_bytes), "memory of a rank at the peak, by kind"),
            picture(pictures.kept(rows), "memory of a rank between steps, by kind")]),
        step(rows, device_bytes=device_bytes),
        Section("origin", "How to reproduce it", [
            {"text": "This was planned by"}, {"code": command}, {"code": in_toml(resolved(plan.scenario))}])])


def drawn_rows(plan: Plan) -> list[RowDocument]:
    """The data of the rows whose step is drawn, for the pictures of a run; the planned rank stands for all."""
    found = []
    for name, row in list(zip(names_of(plan.rows), plan.rows, strict=True))[:MOST_DRAWN]:
        trace = replace(row.trace, steps=[replace(step, memory=thinned(step.memory)) for step in row.trace.steps])
        peak = {str(kind): row.found.peak[kind] for kind in MEMORY_KINDS} | {"total": row.peak_bytes}
        resting = {str(kind): row.found.resting[kind] for kind in MEMORY_KINDS}
        found.append(RowDocument(
            stage=str(row.config.stage_key), name=name, hosts=[0] * row.config.all_ranks,
            model={"title": row.config.model.words, "parameters": row.config.model.count},
            memory=[MemoryDocument(rank=0, peak_bytes=peak, resting_bytes=resting)], trace=trace_document(trace)))
    return found


def thinned(curve: Curve) -> Curve:
    """A curve with at most `MOST_CHANGES` changes: the largest value at each time, and in each interval of times.

    >>> thinned([(at, {"buffers": at % 7}) for at in range(7_000)])[:2]
    [(6, {'buffers': 6}), (13, {'buffers': 6})]
    """
    def fullest(curve: Curve) -> tuple[int, dict[str, int]]:
        return max(curve, key=lambda found: sum(found[1].values()))

    moments = [fullest(list(same)) for _, same in groupby(curve, key=itemgetter(0))]
    each = max(1, -(-len(moments) // MOST_CHANGES))
    return [fullest(moments[at : at + each]) for at in range(0, len(moments), each)]
