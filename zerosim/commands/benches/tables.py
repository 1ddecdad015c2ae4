"""The tables of `zerosim bench` in the terminal."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console

from zerosim.commands.benches.collectives import OWN
from zerosim.commands.benches.samples import SampleRow
from zerosim.commands.benches.timings import RANKS, Workload
from zerosim.show.grid import Column, show_grid, show_words
from zerosim.stages import STAGES

SHORT = 9
"""The characters that a heading may always have, even above narrow cells."""
Columns = Mapping[str, Callable[[Any], str]]
"""The cell of a row under each heading; the first names the row."""


def trained(workload: Workload) -> str:
    """The model and its training, in words."""
    model = workload.model
    if model.kind == "transformer":
        return (f"{model.layers}-block transformer, width {model.width}, AdamW, {workload.batch} sequences of "
                f"{workload.inputs} tokens")
    widths = (workload.inputs, *model.hidden, workload.outputs)
    return f"{'-'.join(map(str, widths))} MLP, AdamW, batch {workload.batch}"


def show_steps(console: Console, rows: Sequence[SampleRow], workload: Workload) -> None:
    """Print the times of every stage's step, and the workload above."""
    alone = 1e3 * rows[0]["alone_seconds"]
    console.print(f"{trained(workload)}: one process {alone:.1f} ms, divided by {RANKS} = {alone / RANKS:.1f} ms")
    show_table(console, rows, {
        "stage": lambda row: STAGES[row["stage"]].title, "ms per step": lambda row: f"{1e3 * row['step_seconds']:.1f}",
        "ratio": lambda row: f"{row['ratio']:.3f}",
        "range of ratios": lambda row: " … ".join(f"{end:.3f}" for end in row["ratio_range"])})


def show_check(console: Console, row: SampleRow) -> None:
    """Print the times of a step with the check of PyTorch and without it."""
    ends = " … ".join(f"{end:.2f}" for end in row["ratio_range"])
    console.print(f"{row['what']}: {1e3 * row['with_seconds']:.0f} ms per step with the check, "
                  f"{1e3 * row['without_seconds']:.0f} ms without; ratio {row['ratio']:.2f} ({ends})")


def show_table(console: Console, rows: Sequence[Any], columns: Columns) -> None:
    """Print a line for each row, as wide as the console; columns that do not fit are printed below the others."""
    (corner, name), *others = columns.items()
    cells = {heading: [cell(row) for row in rows] for heading, cell in others}
    show_grid(console, [name(row) for row in rows], [
        Column(in_two_lines(heading, max([SHORT, *map(len, found)])), found) for heading, found in cells.items()
    ], corner)


def in_two_lines(heading: str, room: int) -> str:
    """The heading, broken at the space that makes it narrowest if it is longer than `room` characters.

    >>> in_two_lines("range of ratios", 9).splitlines(), in_two_lines("Stage III", 9)
    (['range of', 'ratios'], 'Stage III')
    """
    if len(heading) <= room:
        return heading
    words = heading.split(" ")
    cuts = [(" ".join(words[:count]), " ".join(words[count:])) for count in range(1, len(words))]
    return "\n".join(min(cuts, key=lambda cut: max(map(len, cut)))) if cuts else heading


def side_by_side(rows: Sequence[SampleRow], line: Sequence[str], column: str) -> list[dict[Any, SampleRow]]:
    """The rows that agree in the keys `line`, together: each by its value of the key `column`.

    >>> side_by_side([{"ranks": 2, "size": 1}, {"ranks": 4, "size": 1}], ["size"], "ranks")
    [{2: {'ranks': 2, 'size': 1}, 4: {'ranks': 4, 'size': 1}}]
    """
    found: dict[tuple[Any, ...], dict[Any, SampleRow]] = {}
    for row in rows:
        found.setdefault(tuple(row[key] for key in line), {})[row[column]] = row
    return list(found.values())


def cell_of(key: Any, cell: Callable[[SampleRow], str]) -> Callable[[Mapping[Any, SampleRow]], str]:
    """The cell of one row of several that share a line."""
    return lambda line: cell(line[key])


def show_collectives(
    console: Console, rows: Sequence[SampleRow], library: str, switches: Mapping[str, int],
    line: Mapping[str, float] | None,
) -> None:
    """Print a table for each collective: a row for each size, a column for each algorithm, against the library's own
    call."""
    for collective in dict.fromkeys(row["collective"] for row in rows):
        some = [row for row in rows if row["collective"] == collective]
        names = [name for name in dict.fromkeys(row["algorithm"] for row in some) if name != OWN]
        show_words(console, f"{collective} on {some[0]['ranks']} ranks: times of {library}, and ratios to them; "
                            "*: chosen by \"auto\"; GB/s: its bandwidth and its bus bandwidth")
        show_table(console, side_by_side(some, ["bytes"], "algorithm"), {
            "bytes": cell_of(OWN, lambda row: f"{row['bytes']:,}"),
            "µs": cell_of(OWN, lambda row: f"{1e6 * row['seconds']:.1f}"),
            **{name: cell_of(name, lambda row: f"{row['ratio']:.2f}{'*' * row['chosen']}") for name in names},
            "GB/s": lambda at: f"{chosen(at)['algorithm_bandwidth'] / 1e9:.2f}",
            "bus GB/s": lambda at: f"{chosen(at)['bus_bandwidth'] / 1e9:.2f}"})
    for collective, most_bytes in switches.items():
        console.print(f"{collective}: the algorithm for short vectors is faster up to {most_bytes:,} bytes; "
                      f"switch_at({{\"{collective}\": {most_bytes}}}) lets \"auto\" change there")
    if line is not None:
        console.print(f"Fitted to the ring: a message takes {1e6 * line['message_seconds']:.1f} µs and "
                      f"{1e9 * line['byte_seconds']:.3f} ns for each byte")


def chosen(at: Mapping[str, SampleRow]) -> SampleRow:
    """The algorithm that "auto" chooses, or the library's own call."""
    return next((row for row in at.values() if row["chosen"]), at[OWN])
