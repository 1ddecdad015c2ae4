"""The subjects of `zerosim bench`: how each is measured, and the columns of its table in the terminal."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from zerosim.commands.benches.collectives import OWN, time_collectives
from zerosim.commands.benches.published import ComparedFigure, errors, grouped
from zerosim.commands.benches.samples import SampleRow
from zerosim.commands.benches.timings import RANKS, Workload, time_steps
from zerosim.show.grid import Column, show_grid, show_words
from zerosim.stages import STAGES

SHORT = 9
"""The characters that a heading may always have, even above narrow cells."""
Columns = Mapping[str, Callable[[Any], str]]
"""The cell of a row under each heading; the first names the row."""


def ms(key: str) -> Callable[[SampleRow], str]:
    """The cell of a figure in seconds, as milliseconds.

    >>> ms("step_seconds")({"step_seconds": 0.0123})
    '12.3'
    """
    return lambda row: f"{1e3 * row[key]:.1f}"


def stage(row: SampleRow) -> str:
    return STAGES[row["stage"]].title


def between(ends: Iterable[float], digits: int) -> str:
    return " … ".join(f"{end:.{digits}f}" for end in ends)



@dataclass(frozen=True)
class BenchSubject:
    """A subject of `zerosim bench`: what is measured, how, and how it is shown."""

    words: str
    measure: Callable[..., Any] | None = None
    """The samples, on 2 ranks with a model."""
    columns: Columns | None = None
    key: str = "stages"
    """The key of the samples in JSON."""
    above: str = ""
    """The line above the table, if there is a model."""
    below: str = ""


SUBJECTS = {
    "step": BenchSubject(
        "a step of each stage on 2 MPI ranks against one process", time_steps,
        {"stage": stage, "ms per step": ms("step_seconds"), "ratio": lambda row: f"{row['ratio']:.3f}",
         "range of ratios": lambda row: between(row["ratio_range"], 3)},
        above="{trained}: one process {alone:.1f} ms, divided by {ranks} = {half:.1f} ms"),
    "collectives": BenchSubject(
        "every algorithm of four collectives, 1 KiB to 64 MiB, and MPI's own, on any number of ranks",
        time_collectives),
    "plans": BenchSubject(
        "time and memory of the planner itself, relative to a sort of a million strings", None, {
            "plan": lambda row: row["plan"], "seconds": lambda row: f"{row['plan_seconds']:.2f}",
            "ratio": lambda row: f"{row['ratio']:.1f}", "range of ratios": lambda row: between(row["ratio_range"], 1),
            "peak MB": lambda row: f"{row['peak_mb']:.0f}"}, "plans"),
    "published": BenchSubject("the errors of plans of published runs; measures nothing here"),
}
UNITS = {
    "tokens_per_second_per_device": "tokens/s", "mfu": "MFU", "hfu": "HFU", "peak_memory_gib": "GiB",
    "tflops_per_device": "TFLOP/s", "seconds_per_step": "seconds",
}
"""The units of published figures."""


def trained(workload: Workload) -> str:
    """The model and its training, in words."""
    model = workload.model
    if model.kind == "transformer":
        return (f"{model.layers}-block transformer, width {model.width}, AdamW, {workload.batch} sequences of "
                f"{workload.inputs} tokens")
    widths = (workload.inputs, *model.hidden, workload.outputs)
    return f"{'-'.join(map(str, widths))} MLP, AdamW, batch {workload.batch}"


def show_samples(console: Console, what: str, rows: Sequence[SampleRow], workload: Workload | None = None) -> None:
    """Print the samples of a subject of `zerosim bench`: a row for each, and the workload above."""
    subject = SUBJECTS[what]
    assert subject.columns is not None
    if workload is not None:
        alone = 1e3 * rows[0].get("alone_seconds", 0.0)
        console.print(subject.above.format(trained=trained(workload), alone=alone, ranks=RANKS, half=alone / RANKS))
    show_table(console, rows, subject.columns)
    if subject.below:
        console.print(subject.below, style="dim")


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


def show_published(console: Console, compared: Sequence[ComparedFigure], near: float) -> None:
    """Print every figure of published runs with its plan, and a row for each group; a plan is near within `near`."""
    show_table(console, compared, {
        "figure of a published run": lambda each: f"{each.figure.source}: {each.figure.name}",
        "what": lambda each: UNITS[each.figure.kind], "measured": lambda each: f"{each.figure.measured:.4g}",
        "planned": lambda each: f"{each.planned:.4g}", "error": lambda each: f"{each.error:+.1%}",
        "fits": lambda each: "yes" if each.fits else "no"})
    console.print()
    groups = [(name, *(errors(each, near) for each in (
        [each.error for each in found], [each.error_left_out for each in found])))
        for name, found in grouped(compared).items()]
    columns: Columns = {
        "published figures": lambda group: group[0], "figures": lambda group: str(group[1].count),
        "mean error": lambda group: f"{group[1].mean:.1%}", f"within {near:.0%}": lambda group: f"{group[1].near:.0%}",
        "worst": lambda group: f"{group[1].worst:+.1%}"}
    if any(each.figure.left_out for each in compared):
        columns = {**columns, "source left out": lambda group: f"{group[2].mean:.1%}",
                   f"left out, within {near:.0%}": lambda group: f"{group[2].near:.0%}"}
    show_table(console, groups, columns)
    refused = sum(not each.fits for each in compared)
    console.print(f"{refused} of {len(compared)} figures are of runs that would not fit", style="dim")
