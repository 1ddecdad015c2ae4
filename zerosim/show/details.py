"""The additions of `zerosim run --verbose`: messages, bytes by kind, padding, formulas and whole digests."""

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from zerosim.instruments.memory import MEMORY_KINDS
from zerosim.show.columns import VERBOSE, shown_in
from zerosim.show.grid import Column, show_grid, show_words
from zerosim.show.run_document import RowDocument, RunDocument, unit_of
from zerosim.words import FAR, KEPT, in_unit, joined_names, short, spread

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


def show_details(console: Console, run: RunDocument) -> None:
    """Print every figure that the table rounds, adds up or leaves out; for the whole run, the mean over its steps."""
    timed = not run.takes_turns
    if run.steps:
        show_heading(console, "What a rank sends in a step")
        show_sent(console, run, timed=timed)
        show_words(console, f"{SENT} {run.about_times * timed}".rstrip(), style="dim")
        show_heading(console, "What a rank keeps between steps, and the peak of each kind and of all")
        show_held(console, run)
        show_padding(console, run)
    if any(row.found.get("fragmentation") for row in run.rows):
        show_heading(console, "Addresses that rank 0's memory takes in the last step beyond the peak of its bytes")
        show_fragmentation(console, run)
        show_words(console, LAID_OUT_MEANS, style="dim")
    show_heading(console, "SHA-256")
    show_digests(console, run.rows)
    console.print()


def show_heading(console: Console, words: str) -> None:
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
    wrong = [(FORMULA, rank.due.resting_bytes) for rank in row.judged_memory
             if rank.figures.rank == memory["rank"] and not rank.rests]
    far = [(f"  {words}", found) for tier, words in FAR.items() if (found := row.kept_on(tier))]
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
    if ranks and all(rank.rests for rank in ranks):
        padding = spread(map(str, sorted(rank.padding_bytes for rank in ranks)))
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
