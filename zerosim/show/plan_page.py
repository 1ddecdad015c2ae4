"""A plan for the Python prompt, for notebooks, and as a page with the pictures of a run's step in time."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter

from rich.console import Console

from zerosim.core.words import common_unit, ignored_in_words, in_unit, toml
from zerosim.observe.memory import MEMORY_KINDS
from zerosim.observe.trace import Curve
from zerosim.plan.planned_row import PlannedRow
from zerosim.plan.planning import Plan
from zerosim.scenario import resolved
from zerosim.show import pictures
from zerosim.show.document import MemoryDocument, RowDocument, trace_document
from zerosim.show.grid import Column, show_grid
from zerosim.show.page import Head, Section, html, note, picture, step, table
from zerosim.show.plan_table import columns as columns_of
from zerosim.show.plan_table import flat, legend, machine, names_of, not_judged, sentence, show_plan
from zerosim.show.shown import Page, Shown, printed

MOST_DRAWN = 12
"""The most rows whose step is drawn; all rows are in the table."""
MOST_CHANGES = 1_000
"""The most changes of memory in a picture; a longer curve shows the largest value of each interval."""
AT_THE_PROMPT = ("memory", "fits", "step", "waits", "MFU")
"""The columns of the short table."""


def shown_plan(plan: Plan) -> Shown:
    """A plan that displays itself; the rows are the document's, memory in `…_bytes`."""
    return Shown(
        plan, plan.passed, sentence(plan), printed(lambda console: show_short(console, plan)),
        show=lambda console: show_plan(console, plan), make_document=plan.document,
        rows_of=lambda document: [flat(row) for row in document["rows"]],
        make_page=lambda: Page(plan_page(plan, "zs.plan"), f"all of {plan.scenario.title or 'a plan'}"))


def show_short(console: Console, plan: Plan) -> None:
    """Print the few columns that answer most questions, and the verdict."""
    shown: list[Column] = [each for each in columns_of(plan.rows) if each.heading.split("\n")[0] in AT_THE_PROMPT]
    show_grid(console, names_of(plan.rows), shown)
    console.print(sentence(plan), soft_wrap=True)


def plan_page(plan: Plan, command: str) -> str:
    """The HTML of a plan, which `command` repeats.

    Raises `UsageError` if the extra that draws pictures is missing.
    """
    names, rows = names_of(plan.rows), drawn_rows(plan)
    device_bytes = int(plan.rows[0].cluster.device.memory)
    undrawn = f"Pictures have the first {MOST_DRAWN} of these {len(names)} rows."
    return html([head(plan)], [
        Section("table", "Memory and time of each row", [
            *map(note, not_judged(plan)), table(names, [*columns_of(plan.rows), *between_hosts(plan.rows)]),
            {"lines": bounds(plan, names)},
            note("; ".join(f"{word}: {meaning}" for word, meaning in legend(plan.rows))),
            *map(note, ignored_in_words(
                (name, row.config.ignored) for name, row in zip(names, plan.rows, strict=True))),
            *([note(undrawn)] if len(names) > MOST_DRAWN else []),
            picture(pictures.peaks(rows, device_bytes), "memory of a rank at the peak, by kind"),
            picture(pictures.kept(rows), "memory of a rank between steps, by kind")]),
        step(rows, device_bytes=device_bytes),
        Section("origin", "How to reproduce it", [
            {"text": "This was planned by"}, {"code": command}, {"code": toml(resolved(plan.scenario))}])])


def drawn_rows(plan: Plan) -> list[RowDocument]:
    """The rows whose step is drawn."""
    named = zip(names_of(plan.rows), plan.rows, strict=True)
    return [row_of(name, row) for name, row in list(named)[:MOST_DRAWN]]


def row_of(name: str, row: PlannedRow) -> RowDocument:
    """The data of a row for the pictures of a run; the planned rank stands for all."""
    trace = replace(row.trace, steps=[replace(step, memory=thinned(step.memory)) for step in row.trace.steps])
    peak = {str(kind): row.found.peak[kind] for kind in MEMORY_KINDS} | {"total": row.peak_bytes}
    resting = {str(kind): row.found.resting[kind] for kind in MEMORY_KINDS}
    return RowDocument(
        stage=str(row.config.stage_key), name=name, hosts=[0] * row.config.all_ranks,
        model={"title": row.config.model.words, "parameters": row.config.model.count},
        memory=[MemoryDocument(rank=0, peak_bytes=peak, resting_bytes=resting)], trace=trace_document(trace))


def thinned(curve: Curve) -> Curve:
    """A curve with at most `MOST_CHANGES` changes: the largest value at each time, and in each interval of times.

    >>> thinned([(at, {"buffers": at % 7}) for at in range(7_000)])[:2]
    [(6, {'buffers': 6}), (13, {'buffers': 6})]
    """
    moments = [fullest(list(same)) for _, same in groupby(curve, key=itemgetter(0))]
    each = max(1, -(-len(moments) // MOST_CHANGES))
    return [fullest(moments[at : at + each]) for at in range(0, len(moments), each)]


def fullest(curve: Curve) -> tuple[int, dict[str, int]]:
    return max(curve, key=lambda found: sum(found[1].values()))


def head(plan: Plan) -> Head:
    """The title of the plan, and its result in a sentence."""
    return Head(plan.scenario.title or "A plan without a title", [
        sentence(plan), *(f"FAILED: {words}" for words in plan.broken)], bool(plan.passed and plan.best),
        f"{plan.scenario.caption}\n{machine(plan.rows)}".strip())


def bounds(plan: Plan, names: Sequence[str]) -> list[str]:
    """The bound of each row."""
    return [f"{name}: {words}" for name, row in zip(names, plan.rows, strict=True)
            for words in (row.bound, row.over_directions) if words]


def between_hosts(rows: Sequence[PlannedRow]) -> list[Column]:
    """The bytes that leave a host in a step, if ranks are on several."""
    counts = [row.between_bytes_per_host for row in rows]
    unit = common_unit(max(counts))
    cells = [in_unit(count, unit) for count in counts]
    return [Column(f"leaves a host, {unit.name}", cells)] if any(counts) else []
