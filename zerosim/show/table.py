"""The outcome of a run in the terminal: a line for each row, facts that all rows share, failures, and the verdict.

The table is for a reader who has never seen it. Whether bits are equal comes first, then the bytes that a rank keeps
and sends, then its peak. All bytes have one unit, which the headings name, and bars, so that rows can be compared by
eye. Every heading and every stage has its line below. Bytes for each parameter, messages and digests are for experts:
`-v` adds them.

`show_details` prints the additions of `-v`: messages, bytes by kind, padding, formulas and full digests.

Everything fits into 80 columns and reads without colour; a narrower terminal gets fewer columns.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from zerosim.core.words import (
    KEPT,
    ON_HOST,
    grouped,
    ignored_in_words,
    in_unit,
    joined,
    joined_names,
    plural,
    short,
    short_digest,
    spread,
)
from zerosim.observe.memory import MEMORY_KINDS
from zerosim.show.columns import TERMINAL, VERBOSE, WRONG, Figure, facts, shown_in
from zerosim.show.document import rests
from zerosim.show.grid import Column, longest, show_grid, show_words, width_of
from zerosim.show.legend import STATE_BARS, bar, show_legend, stacked
from zerosim.show.run_document import RowDocument, RunDocument, element_name, unit_of
from zerosim.show.timeline import show_schedules, show_timeline, show_times
from zerosim.stages import STAGES
from zerosim.stages.scaling import LOWEST_SCALE, skipped_in_vain
from zerosim.verdict.diagnosis import Divergence

MOST_NAME = 16
"""The most columns of names, if figures could have bars beside them."""

BARS = ((32, 18), (16, 12), (8, 6), (0, 0))
"""The columns of the bars of kept and sent bytes, widest first: quarters, thirds and halves are whole columns."""

HELD = (*MEMORY_KINDS, "total")
PEAK, FORMULA = "  at the peak", "  by formula"

SENT = "A reduce-scatter and an all-gather of all weights are P (N−1)/N each."

ALLOCATORS = {
    "first_fit": "first fit", "best_fit": "best fit",
    "first_fit_laid_out": "first fit, laid out", "best_fit_laid_out": "best fit, laid out",
}
LAID_OUT_MEANS = (
    "Laid out: kept gradients and saved activations have fixed places in one block, allocated in advance."
)


def show_heading(console: Console, title: str, caption: str, setting: str) -> None:
    """Show the title, the caption and the world of a run before it begins."""
    for words, style in ((title, "bold"), (caption, ""), (setting, "dim")):
        if words:
            show_words(console, words, style=style)


def show_run(
    console: Console, run: RunDocument, *, verbose: bool = False, timeline: bool = False
) -> None:
    """Show the results of each row, the facts that all share, the failures, and the verdict.

    Traced times are shown too, as a `timeline` if requested. `verbose` adds the figures that the table leaves out.
    """
    if run.rows:
        table = show_table(console, run)
        show_shared(console, run)
        console.print()
        show_legend(console, run, table)
        for words in ignored_in_words((row.name, row.found.get("ignored", {})) for row in run.rows):
            show_words(console, words, style="yellow")
        if timeline:
            show_timeline(console, run)
            show_schedules(console, run)
        show_times(console, run)
        if verbose:
            show_details(console, run)
    for words in run.shortages:
        show_words(console, words)
    show_skipped(console, run)
    for row in run.diverging:
        show_divergence(console, row)
    for apart in run.document.get("differences", []):
        show_row_difference(console, apart)
    if run.document.get("on_other_ranks"):
        show_other_ranks(console, run)
    show_conclusion(console, run)


def show_conclusion(console: Console, run: RunDocument) -> None:
    """Print PASSED or FAILED as the last line; it may wrap on a terminal. Failures that need more than a line stand
    above."""
    verdict, passed, alone = run.document["verdict"], run.document["passed"], not console.is_terminal
    if claimed := untrained(run):
        show_words(console, f"Not checked: {joined(claimed)} must not fit, but no row here uses it")
    if not passed:
        failures = [f"{each['name']}: {each['what']}" for each in run.document["failures"]]
        whole = f"FAILED: {'; '.join(failures)}"
        if len(whole) <= console.width:
            verdict = whole
        else:
            for words in failures:
                show_words(console, words, style="red")
    console.print(verdict, style=f"bold {'green' if passed else 'red'}", markup=False, soft_wrap=alone)


def untrained(run: RunDocument) -> list[str]:
    """The stages with claims that no row trains, because an override has changed the rows."""
    trained = {each["stage"] for each in run.declared}
    claimed = run.scenario.get("check", {}).get("does_not_fit", [])
    return [STAGES[stage].title for stage in claimed if stage not in trained]


def show_table(console: Console, run: RunDocument) -> list[Column]:
    """Show the main table, with bars beside figures if there is room; returns its columns."""
    names = [row.name for row in run.all_rows]
    beside = console.width - min(longest(names), MOST_NAME)
    *wider, narrowest = (columns(run, *rooms) for rooms in BARS)
    found = next((each for each in wider if width_of(each) <= beside), narrowest)
    show_grid(console, names, found)
    return found


def columns(run: RunDocument, for_kept: int, for_sent: int) -> list[Column]:
    """Whether bits are the same and, if there were steps, the figures of the terminal.

    Bars of kept and sent bytes have these numbers of terminal columns.
    """
    found = [same_bits(run)] if run.compared_with or run.document["did_not_fit"] else []
    if not run.steps:
        return found
    rooms = {"kept_bytes": for_kept, "sent_bytes": for_sent}
    return [*found, *(column(run, figure, rooms.get(figure.key, 0)) for figure in shown_in(TERMINAL, run.rows))]


def same_bits(run: RunDocument) -> Column:
    """The column that says whether a row's bits equal its reference's, or that it did not fit."""
    partner = "one process" if run.compared_with <= {"one process"} else "another row"
    words = {None: Text("–"), True: Text("yes", style="green"), False: Text("NO", style="bold red")}
    cells = [words[row.found["equal"]] if row.is_trained else Text("does not fit", style="yellow")
             for row in run.all_rows]
    return Column(f"same bits as\n{partner}" if run.compared_with else "", cells)


def column(run: RunDocument, figure: Figure, room: int) -> Column:
    """The column of a figure; rows that did not fit have none. With room, bars stand beside it."""
    unit = unit_of(run.rows)
    cells = [Text(cell, style="bold red" if cell.startswith(WRONG) else "") for cell in figure.marked(run.rows, unit)]
    left = iter(with_bars(cells, bars(run.rows, figure, room), room) if room else cells)
    return Column(figure.title(unit), [next(left) if row.is_trained else Text() for row in run.all_rows], room > 0)


def bars(rows: Sequence[RowDocument], figure: Figure, room: int) -> list[Text]:
    """A bar for each row: of kept bytes by kind, of others as a whole."""
    counts = [figure.value(row) for row in rows]
    if figure.key == "kept_bytes":
        kept = [[row.fullest["resting_bytes"][kind.name] for kind in STATE_BARS] for row in rows]
        return [stacked(each, max(counts), room) for each in kept]
    return [bar(count, max(counts), room) for count in counts]


def with_bars(figures: Sequence[Text], bars: Sequence[Text], room: int) -> list[Text]:
    """Each figure, flush right, with its bar."""
    width, cells = max(map(len, figures)), []
    for figure, beside in zip(figures, bars, strict=True):
        cell = Text.assemble(" " * (width - len(figure)), figure, " ", beside)
        cell.pad_right(width + 1 + room - len(cell))
        cells.append(cell)
    return cells


def show_shared(console: Console, run: RunDocument) -> None:
    """Show each fact once if all rows share it, else with its rows."""
    found, names = facts(run), [row.name for row in run.rows]
    steps, digests = found.pop("steps")[0], found.pop("weights SHA-256", [])
    same = [f"{what} {words[0]}" for what, words in found.items() if len(set(words)) == 1]
    if len(set(digests)) > 1:
        found["weights SHA-256"] = [short_digest(each) for each in digests]
    alike = ["the same weights"] if len(digests) > 1 and len(set(digests)) == 1 else []
    prefix = {1: "", 2: "In both rows: "}.get(len(names), f"In all {len(names)} rows: ")
    counted = f"{steps} step{'s' * (steps != '1')}"
    show_words(console, f"{prefix}{', '.join([counted, *same, *alike])}")
    for what, words in found.items():
        if len(set(words)) > 1:
            show_words(console, sentence(f"{what}: {grouped(names, words)}"))


def sentence(words: str) -> str:
    return words[:1].upper() + words[1:]


def show_skipped(console: Console, run: RunDocument) -> None:
    """Show the rows that did not train because gradients overflowed at every loss scale, if there are any."""
    updates = {row.name: row.found.get("updates", run.steps) for row in run.rows}
    lost = {name: run.steps - done for name, done in updates.items() if skipped_in_vain(done, run.steps - done)}
    if lost:
        skipped = [f"{count:,}" for count in sorted(lost.values())]
        show_words(
            console,
            f"{joined_names(list(lost))}: gradients overflowed float16 in {spread(skipped)} of "
            f"{plural(run.steps, 'step')}, which changed nothing but the loss scale: it halves, down to "
            f"{LOWEST_SCALE:.3g}. Scale the data down, take more steps, or set train.precision to bf16.",
            style="yellow",
        )


def show_divergence(console: Console, row: RowDocument) -> None:
    """Show the first differing bits, and both orders of addition if these differ."""
    found = dict(row.found["first_divergence"])
    order = found.pop("order_of_addition", None)
    show_words(console, f"{row.name}: {divergence(Divergence(**found))}", style="red")
    if order and order["ours"] != order["reference"]:
        for side, words in order.items():
            show_words(console, words, key=f"    {side + ' adds':<15} ")


def show_row_difference(console: Console, found: Mapping[str, Any]) -> None:
    """Show why two rows differ although each equals one process; `found` is one of a document's `differences`."""
    one, other = found["values"]
    first, second, cause = found["first"], found["other"], found["cause"]
    console.print()
    told = f"{second} is not {first}, and each has the bits of one process. Reason:"
    show_words(console, told, style="bold")
    show_words(
        console,
        f"They first differ in step {found['step']}: the {element_name(found, found['what'])} is "
        f"{float(one)!r} in {first} and {float(other)!r} in {second} ({plural(found['ulps'], 'ULP')} apart). "
        f"{sentence(cause)}."
    )
    orders = zip(found["chunks"], found["orders"], strict=True)
    adding = list(dict.fromkeys(f"adds it in chunk {chunk}, {order}" for chunk, order in orders))
    for name, how in zip((first, second), adding, strict=False):
        who = name if len(adding) > 1 else f"each of {first} and {second}"
        show_words(console, f"{who} {how}", key="    ")
    counts = "   ".join(f"{name}: {count:,}" for name, count in found["histogram"].items() if count)
    show_words(console, f"elements by ULPs apart: {counts}", key="    ")


def show_other_ranks(console: Console, run: RunDocument) -> None:
    """Show the digest of the weights on every number of ranks; if rows differ, with their names."""
    found: dict[int, dict[str, list[str]]] = {}
    ours = [(run.ranks, row.name, row.found["weights_sha256"]) for row in run.rows]
    others = [(each["ranks"], each["name"], each["weights_sha256"]) for each in run.document["on_other_ranks"]]
    for count, name, digest in [*ours, *others]:
        found.setdefault(count, {}).setdefault(digest, []).append(name)
    console.print("SHA-256 of the weights", style="bold")
    for count, by_digest in sorted(found.items()):
        for digest, names in by_digest.items():
            whose = f"  {joined_names(names)}" * (len(by_digest) > 1)
            show_words(console, f"{short_digest(digest)}{whose}", key=f"{plural(count, 'rank'):>8}  ")


def divergence(found: Divergence) -> str:
    """One line: the place of the first difference, both values, and their distance."""
    apart = "not comparable in ULPs" if found.ulps is None else f"{found.ulps} ULP apart"
    return (
        f"after step {found.step}, rank {found.rank} holds {element_name(vars(found), found.state)} = "
        f"{value(found.ours, found.ours_bits)}, "
        f"one process {value(found.reference, found.reference_bits)} ({apart}; chunk {found.chunk})"
    )


def value(number: float, bits: str) -> str:
    """A number, with its bits if these are not unique.

    >>> value(0.5, "0x3f000000"), value(1e-40, "0x000116c2"), value(0.0, "0x00000000")
    ('0.5', '1e-40', '0.0 (0x00000000)')
    >>> value(-0.0, "0x80000000"), value(math.nan, "0x7fc00001")
    ('-0.0 (0x80000000)', 'nan (0x7fc00001)')
    """
    number = float(number)
    return f"{number!r} ({bits})" if number == 0 or math.isnan(number) else f"{number!r}"


def show_details(console: Console, run: RunDocument) -> None:
    """Print every figure that the table rounds, adds up or leaves out; for the whole run, the mean over its steps."""
    timed = not run.takes_turns
    if run.steps:
        show_subheading(console, "What a rank sends in a step")
        show_sent(console, run, timed=timed)
        show_words(console, f"{SENT} {run.about_times * timed}".rstrip(), style="dim")
        show_subheading(console, "What a rank keeps between steps, and the peak of each kind and of all")
        show_held(console, run)
        show_padding(console, run)
    if any(row.found.get("fragmentation") for row in run.rows):
        show_subheading(console, "Addresses that rank 0's memory takes in the last step beyond the peak of its bytes")
        show_fragmentation(console, run)
        show_words(console, LAID_OUT_MEANS, style="dim")
    show_subheading(console, "SHA-256")
    show_digests(console, run.rows)
    console.print()


def show_subheading(console: Console, words: str) -> None:
    """Print a heading in bold, below an empty line."""
    console.print()
    show_words(console, words, style="bold")


def show_sent(console: Console, run: RunDocument, *, timed: bool) -> None:
    """Print bytes and messages, the formula, and each collective's share; if ranks differ, the least and the most."""
    rows, unit = run.rows, unit_of(run.rows)
    found = [Column(each.title(unit), each.cells(rows, unit, spreads=True)) for each in shown_in(VERBOSE, rows)]
    if timed:
        seconds = [row.found["seconds"]["train"] / max(row.steps_here, 1) for row in rows]
        found.append(Column("ms", [short(1e3 * each) for each in seconds]))
    for name in sorted({name for row in rows for rank in row.found["traffic"] for name in rank["by_collective"]}):
        sent = [row.per_step("sent_bytes", name) for row in rows]
        found.append(Column(f"{name}\n{unit.name}", [spread(in_unit(round(each), unit) for each in of) for of in sent]))
    show_grid(console, [row.name for row in rows], found)


def show_held(console: Console, run: RunDocument) -> None:
    """Print two lines for each row, for the rank with the highest peak; a third with the formula if that does not hold;
    and one for each memory tier that holds offloaded states.
    """
    unit = unit_of(run.rows)
    names, counts = [], []
    for row in run.rows:
        for name, found in held(row):
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


def held(row: RowDocument) -> list[tuple[str, dict[str, int]]]:
    """The lines of a row: their names, and bytes by kind."""
    memory = row.fullest
    wrong = [(FORMULA, rank["formula_bytes"]) for rank in row.judged_memory
             if rank["rank"] == memory["rank"] and not rests(rank)]
    far = [(f"  {ON_HOST}", row.kept_on_host)] if row.kept_on_host else []
    return [(row.name, memory["resting_bytes"]), *wrong, (PEAK, memory["peak_bytes"]), *far]


def show_fragmentation(console: Console, run: RunDocument) -> None:
    """Print the peak, and the bytes beyond it that each allocator needs."""
    found = {row.name: row.found["fragmentation"] for row in run.rows if row.found.get("fragmentation")}
    unit = unit_of(run.rows)
    columns = [Column(f"peak\n{unit.name}", [in_unit(each["peak_bytes"], unit) for each in found.values()])]
    for name, heading in ALLOCATORS.items():
        cells = [in_unit(each["beyond_peak_bytes"][name], unit) for each in found.values()]
        columns.append(Column(f"{heading}\n{unit.name}", cells))
    show_grid(console, list(found), columns)


def show_padding(console: Console, run: RunDocument) -> None:
    """Print whether kept bytes equal the formula's, and their padding."""
    ranks = [rank for row in run.rows for rank in row.judged_memory]
    if ranks and all(map(rests, ranks)):
        padding = spread(map(str, sorted(rank["padding_bytes"] for rank in ranks)))
        show_words(console, f"Kept bytes are the formula's, {padding} B of padding included.", style="dim")


def show_digests(console: Console, rows: Sequence[RowDocument]) -> None:
    """Print the digests of weights and optimizer state in full, with their rows."""
    for what in ("weights", "optimizer"):
        names: dict[str, list[str]] = {}
        for row in rows:
            names.setdefault(row.found[f"{what}_sha256"], []).append(row.name)
        for digest, whose in names.items():
            show_words(console, f"{what}{f', {joined_names(whose)}' * (len(names) > 1)}")
            console.print(f"  {digest}", soft_wrap=True)
