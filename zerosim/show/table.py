"""The outcome of a run in the terminal: a line for each row, facts that all rows share, failures, and the verdict.

The table is for a reader who has never seen it: whether bits are equal comes first, then the figures of `FIGURES`, all
bytes in one unit and with bars, and below it every heading and every stage is explained. `-v` adds messages, bytes by
kind, padding, formulas and full digests. Everything fits into 80 columns and reads without colour.
"""

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from statistics import fmean

from rich.console import Console
from rich.text import Text

from zerosim.core.allocation import MODEL_STATES
from zerosim.core.words import by_key, grouped, in_unit, joined_names, plural, short, short_digest, spread
from zerosim.show.columns import KIND_WORDS, TERMINAL, VERBOSE, WRONG, bits, facts, legend, notes, shown_in
from zerosim.show.document import OtherRanksDocument, RunDocument, StepDocument, TraceDocument, unit_of
from zerosim.show.grid import Column, bar, fits, show_grid, show_words
from zerosim.stages import STAGES

BARS = (24, 12, 6, 0)
"""The columns of a bar, the longest that leave room for names; quarters and halves are whole columns."""
TIMES: dict[str, Callable[[StepDocument], int]] = {
    "step": lambda step: step.end_ns - step.begin_ns, "computing": attrgetter("computation_ns"),
    "waiting": attrgetter("waiting_ns"), "idle": attrgetter("idle_ns"), "offload": attrgetter("moving_ns"),
    "exposed": attrgetter("waiting_for_memory_ns"), "collectives": attrgetter("communication_ns")}
"""The times of a step; those of copies to the host and back are shown where there are any."""
ABOUT_TIMES = ("Mean over ranks and traced steps. Waiting: exposed communication. Hidden: the share of the time in "
               "collectives that overlaps computation.")


def show_heading(console: Console, title: str, caption: str, setting: str) -> None:
    """Show the title, the caption and the world of a run before it begins."""
    for words, style in ((title, "bold"), (caption, ""), (setting, "dim")):
        if words:
            show_words(console, words, style=style)


def show_run(console: Console, run: RunDocument, *, verbose: bool = False, times: bool = True) -> None:
    """Show the results of each row, the facts that all share, the failures, and the verdict.

    Traced `times` are shown too; `verbose` adds the figures that the table leaves out.
    """
    if run.rows:
        names = [*(row.name for row in run.rows), *(row.name for row in run.did_not_fit)]
        tables = [columns(run, room) for room in BARS]
        show_grid(console, names, next((table for table in tables if fits(console, names, table)), tables[-1]))
        show_shared(console, run)
        console.print()
        entries = [*of_stages(run), *legend(run, shown_in(TERMINAL, run.rows) if run.steps else [])]
        width = max(len(key) for key, _ in entries)
        for key, words in entries:
            show_words(console, words, key=f"{key:<{width}}  ", style="dim")
        for words in notes(run):
            show_words(console, words, style="yellow")
        if times:
            show_times(console, run)
        if verbose:
            show_details(console, run)
    for misfit in run.did_not_fit:
        show_words(console, misfit.words)
    for row in run.rows:
        if first := row.first_divergence:
            show_words(console, f"{row.name}: {first.words}", style="red")
            orders = first.order_of_addition or {}
            for side, words in orders.items() if len({*orders.values()}) > 1 else ():
                show_words(console, words, key=f"    {side + ' adds':<15} ")
    for difference in run.differences:
        heading, where, *orders_of_rows = difference.lines
        show_subheading(console, heading)
        show_words(console, where)
        for words in orders_of_rows:
            show_words(console, words, key="    ")
    own = [OtherRanksDocument(run.ranks, row.name, row.weights_sha256) for row in run.rows if run.on_other_ranks]
    for ranks, on in sorted(by_key((row.ranks, row) for row in [*own, *run.on_other_ranks]).items()):
        digests = [short_digest(row.weights_sha256) for row in on]
        words = grouped([row.name for row in on], digests) if len({*digests}) > 1 else digests[0]
        show_words(console, f"SHA-256 of the weights on {plural(ranks, 'rank')}: {words}")
    show_conclusion(console, run)


def columns(run: RunDocument, room: int) -> list[Column]:
    """Whether each row has the bits of its reference and, if there were steps, the figures of the terminal; with room,
    bars beside them. Rows that did not fit have none."""
    blank, shown = [""] * len(run.did_not_fit), list[Column]()
    if run.compared_with or run.did_not_fit:
        partner = "one process" if run.compared_with <= {"one process"} else "another row"
        styles = {"yes": "green", "NO": "bold red", "does not fit": "yellow"}
        words = [*bits(run.rows), *("does not fit" for _ in blank)]
        shown.append(Column(f"same bits as\n{partner}" if run.compared_with else "", [
            Text(word, style=styles.get(word, "")) for word in words]))
    for figure in shown_in(TERMINAL, run.rows) if run.steps else ():
        cells = [Text(cell, style="bold red" if cell.startswith(WRONG) else "")
                 for cell in figure.cells(run.rows, unit_of(run.rows))]
        if figure.bar is not None and room:
            parts, width = [*map(figure.bar, run.rows)], max(map(len, cells))
            whole = max(sum(bar_parts.values()) for bar_parts in parts)
            for cell, bar_parts in zip(cells, parts, strict=True):
                cell.pad_left(width - len(cell))
                cell.append(" ").append_text(bar(bar_parts, whole, room))
        shown.append(Column(figure.title(unit_of(run.rows)), [*cells, *blank], to_the_left=bool(figure.bar and room)))
    return shown


def of_stages(run: RunDocument) -> Iterator[tuple[str, str]]:
    """The states that a rank keeps in each stage, and other names of the stage."""
    for alike in by_key((row.stage, row) for row in run.rows).values():
        stage, names = alike[0].stage_words, [row.name for row in alike]
        whose = "" if all(name.startswith(stage.title) for name in names) else f", in {joined_names(names)}"
        share = " or ".join(f"1/{ranks}" for ranks in sorted({row.shard_ranks for row in alike}))
        cut, whole = ([KIND_WORDS[kind] for kind in MODEL_STATES if (kind in stage.sharded) is sharded]
                      for sharded in (True, False))
        rest = f"all {joined_names(whole)}" if whole else "gathers weights for use"
        keeps = f"keeps {share} of {joined_names(cut)}, {rest}" if cut else f"every rank keeps {rest}"
        yield stage.title, f"{stage.also}{whose}: {keeps}"


def show_shared(console: Console, run: RunDocument) -> None:
    """Show each fact once if all rows share it, else with its rows."""
    shared, names = facts(run), [row.name for row in run.rows]
    steps, digests = shared.pop("steps")[0], shared.pop("weights SHA-256", [])
    same = [f"{what} {words[0]}" for what, words in shared.items() if len({*words}) == 1]
    if len({*digests}) > 1:
        shared["weights SHA-256"] = [short_digest(digest) for digest in digests]
    alike = ["the same weights"] if len(digests) > 1 and len({*digests}) == 1 else []
    prefix = {1: "", 2: "In both rows: "}.get(len(names), f"In all {len(names)} rows: ")
    show_words(console, f"{prefix}{', '.join([f'{steps} step' + 's' * (steps != '1'), *same, *alike])}")
    for what, words in shared.items():
        if len({*words}) > 1:
            show_words(console, f"{what[:1].upper()}{what[1:]}: {grouped(names, words)}")


def show_times(console: Console, run: RunDocument) -> None:
    """Show milliseconds of each part of the traced steps, and why times may mean little."""
    traces = {row.name: row.trace for row in run.rows if row.trace and row.trace.steps}
    if traces:
        show_subheading(console, "The time of a step")
        show_grid(console, [*traces], step_times([*traces.values()]))
        show_words(console, f"{ABOUT_TIMES} {run.about_times}".rstrip(), style="dim")
        console.print()


def step_times(traces: Sequence[TraceDocument]) -> list[Column]:
    """The milliseconds of each part of the traced steps."""
    copies = any(step.moving_ns or step.waiting_for_memory_ns for trace in traces for step in trace.steps)
    return [*(Column(f"{heading}\nms", [short(fmean(map(time, trace.steps)) / 1e6) for trace in traces])
              for heading, time in TIMES.items() if copies or heading not in ("offload", "exposed")),
            Column("hidden\nof it", ["–" if trace.hidden is None else f"{trace.hidden:.0%}" for trace in traces])]


def show_details(console: Console, run: RunDocument) -> None:
    """Print every figure that the table adds up or leaves out; if ranks send differently, the least and the most."""
    if run.steps:
        show_subheading(console, "What a rank sends in a step, keeps between steps and holds at the peak")
        rows, unit = run.rows, unit_of(run.rows)
        columns = [Column(figure.title(unit), figure.cells(rows, unit, spreads=True))
                   for figure in shown_in(VERBOSE, rows)]
        if not run.takes_turns:
            columns.append(Column("ms", [short(1e3 * row.seconds["train"] / max(row.steps_here, 1)) for row in rows]))
        for name in sorted({name for row in rows for rank in row.traffic for name in rank.by_collective}):
            columns.append(Column(f"{name}\n{unit.name}", [
                spread(in_unit(round(count), unit) for count in row.per_step("sent_bytes", name)) for row in rows]))
        show_grid(console, [row.name for row in rows], columns)
        words = "A reduce-scatter and an all-gather of all weights are P (N−1)/N each."
        show_words(console, f"{words} {run.about_times * (not run.takes_turns)}".rstrip(), style="dim")
    show_subheading(console, "SHA-256")
    for what in ("weights", "optimizer"):
        names = by_key((getattr(row, f"{what}_sha256"), row.name) for row in run.rows)
        for digest, whose in names.items():
            show_words(console, f"{what}{f', {joined_names(whose)}' * (len(names) > 1)}")
            console.print(f"  {digest}", soft_wrap=True)
    console.print()


def show_subheading(console: Console, words: str) -> None:
    """Print a heading in bold, below an empty line."""
    console.print()
    show_words(console, words, style="bold")


def show_conclusion(console: Console, run: RunDocument) -> None:
    """Print PASSED or FAILED as the last line; it may wrap on a terminal. Failures that need more than a line stand
    above."""
    stages = {*(row.stage for row in run.rows), *(row.stage for row in run.did_not_fit)}
    unused = [STAGES[stage].title for stage in run.scenario["check"]["does_not_fit"] if stage not in stages]
    if unused:
        show_words(console, f"Not checked: {joined_names(unused)} must not fit, but no row here uses it")
    failures = [f"{failure['name']}: {failure['what']}" for failure in run.failures]
    verdict = f"FAILED: {'; '.join(failures)}" if failures else run.verdict
    if failures and len(verdict) > console.width:
        verdict = run.verdict
        for words in failures:
            show_words(console, words, style="red")
    console.print(verdict, style=f"bold {'green' if run.passed else 'red'}", markup=False,
                  soft_wrap=not console.is_terminal)
