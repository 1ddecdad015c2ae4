"""The figures of a benchmark in the terminal."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from rich.console import Console

from zerosim.bench.cluster import ComparedStep
from zerosim.bench.collectives import OWN, TimedCollective
from zerosim.bench.outside import ComparedFigure, grouped
from zerosim.bench.published import NEAR, errors
from zerosim.bench.published import ComparedRun as Published
from zerosim.bench.spent import KINDS, SpentStep
from zerosim.bench.timings import RANKS, Duration, Overhead, Timing, Workload
from zerosim.bench.wires import QuantisedSum
from zerosim.report.grid import Column, show_grid, show_words
from zerosim.report.wire_picture import NAMES, answer
from zerosim.stages import STAGES


def trained(workload: Workload) -> str:
    """The model and its training, in words."""
    model = workload.model
    if model.kind == "transformer":
        return (f"{model.layers}-block transformer, width {model.width}, AdamW, {workload.batch} sequences of "
                f"{workload.inputs} tokens")
    widths = (workload.inputs, *model.hidden, workload.outputs)
    return f"{'-'.join(map(str, widths))} MLP, AdamW, batch {workload.batch}"


def show_timings(console: Console, timings: Sequence[Timing], workload: Workload) -> None:
    """Print a row for each stage: its step, and its ratio to half of the time of one process."""
    alone = timings[0].document()["alone_seconds"]
    console.print(
        f"{trained(workload)}: one process {1e3 * alone:.1f} ms, divided by {RANKS} = {1e3 * alone / RANKS:.1f} ms",
    )
    table = BenchTable("stage", "ms per step", "ratio", "range of ratios")
    for timing in timings:
        figures = timing.document()
        table.add_row(STAGES[timing.stage].title, f"{1e3 * figures['step_seconds']:.1f}", *ratios(figures))
    table.show(console)


def show_spent(console: Console, steps: Sequence[SpentStep], workload: Workload) -> None:
    """Print a column for each stage: the milliseconds of its step, and those of each kind of work."""
    console.print(f"{trained(workload)}: ms of a step on rank 0, by kind of work")
    table = BenchTable("ms", *(STAGES[step.stage].title for step in steps))
    table.add_row("step", *(f"{1e3 * sum(step.seconds.values()):.1f}" for step in steps))
    for kind in KINDS:
        table.add_row(kind, *(f"{1e3 * step.seconds[kind]:.1f}" for step in steps))
    table.show(console)


def show_overheads(console: Console, overheads: Sequence[Overhead], workload: Workload) -> None:
    """Print four rows for each stage: its step as in a run against one without ledgers; traced, and with checksums.

    The fourth is a traced step against itself without the calls of the trace and the ledger.
    """
    console.print(
        f"{trained(workload)}: ms on a core with and without a feature: byte counts; tracing and checksums of a "
        "counted step; the calls of trace and memory ledger in a traced step")
    show_with_and_without(console, overheads)


def show_saving(console: Console, overheads: Sequence[Overhead], workload: Workload) -> None:
    """Print a row for a checkpoint against a plain write, and one for a step of a run that saves nothing."""
    console.print(f"{trained(workload)}: a checkpoint against a plain write of as many bytes; a step of a run that "
                  "saves nothing, with and without the test whether a checkpoint is due")
    show_with_and_without(console, overheads)


def show_with_and_without(console: Console, overheads: Sequence[Overhead]) -> None:
    table = BenchTable("stage", "ms with", "ms without", "ratio", "range of ratios")
    for overhead in overheads:
        figures = overhead.document()
        table.add_row(
            f"{STAGES[overhead.stage].title}, {overhead.what}", f"{1e3 * figures['with_seconds']:.1f}",
            f"{1e3 * figures['without_seconds']:.1f}", *ratios(figures),
        )
    table.show(console)


def show_durations(console: Console, durations: Sequence[Duration]) -> None:
    """Print a row for each task, and its seconds."""
    table = BenchTable("in one process", "seconds")
    for duration in durations:
        table.add_row(duration.what, f"{duration.seconds:.2f}")
    table.show(console)


def show_compared(console: Console, steps: Sequence[ComparedStep]) -> None:
    """Print a row for each model: its planned step on the measured machine, and its measured step."""
    table = BenchTable("step on 2 ranks", "stage", "planned ms", "measured ms", "quartiles", "ratio", "rounds")
    for each in steps:
        figures = each.document()
        low, high = figures["quartiles"]
        table.add_row(
            each.model, STAGES[each.stage].title, f"{1e3 * each.planned_seconds:.1f}",
            f"{1e3 * figures['step_seconds']:.1f}", f"{1e3 * low:.1f} … {1e3 * high:.1f}", f"{each.ratio:.2f}",
            f"{figures['used']} of {figures['rounds']}",
        )
    table.show(console)
    console.print("ms on a core, on the rank that waited less; ratio: planned over measured; rounds: the least "
                  "disturbed rounds, of all rounds", style="dim")


def show_published(console: Console, compared: Sequence[Published]) -> None:
    """Print every run with its plan, and a row for each device and precision of products."""
    table = BenchTable("run", "MFU", "planned", "error")
    for each in compared:
        table.add_row(each.run.name, f"{each.run.mfu:.1%}", f"{each.planned_mfu:.1%}", f"{each.error:+.1%}")
    table.show(console)
    console.print()
    summary = BenchTable("device", "runs", "mean error of MFU", f"within {NEAR:.0%}", "worst")
    for device, found in by_device(compared).items():
        of_all = errors([each.error for each in found])
        worst = max(found, key=lambda each: abs(each.error)).error
        summary.add_row(device, str(of_all.count), f"{of_all.mean:.1%}", f"{of_all.near:.0%}", f"{worst:+.1%}")
    summary.show(console)


def show_outside(console: Console, compared: Sequence[ComparedFigure]) -> None:
    """Print every figure of other trainers with its plan, and a row for each software and feature."""
    table = BenchTable("figure of a run elsewhere", "what", "measured", "planned", "error", "fits")
    for each in compared:
        figure = each.figure
        table.add_row(
            f"{figure.source}: {figure.name}", UNITS[figure.kind], f"{figure.measured:.4g}", f"{each.planned:.4g}",
            f"{each.error:+.1%}", "yes" if each.fits else "no")
    table.show(console)
    console.print()
    summary = BenchTable(
        "figures elsewhere", "figures", "mean error", f"within {NEAR_ELSEWHERE:.0%}", "worst", "source left out")
    for name, found in grouped(compared).items():
        sizes = [abs(each.error) for each in found]
        summary.add_row(
            name, str(len(sizes)), f"{fmean(sizes):.1%}", f"{fmean(size <= NEAR_ELSEWHERE for size in sizes):.0%}",
            f"{max((each.error for each in found), key=abs):+.1%}",
            f"{fmean(abs(each.error_left_out) for each in found):.1%}")
    summary.show(console)
    refused = sum(not each.fits for each in compared)
    console.print(f"{refused} of {len(compared)} figures are of runs that would not fit", style="dim")


NEAR_ELSEWHERE = 0.15
UNITS = {
    "tokens_per_second_per_device": "tokens/s", "mfu": "MFU", "hfu": "HFU", "peak_memory_gib": "GiB",
}


def by_device(compared: Sequence[Published]) -> dict[str, list[Published]]:
    """The runs of each device; runs in 8 bits are a group of their own."""
    found: dict[str, list[Published]] = {}
    for each in compared:
        device = each.run.device + (", fp8" if each.run.precision == "amp_fp8" else "")
        found.setdefault(device, []).append(each)
    return found


def show_wires(console: Console, found: Sequence[QuantisedSum]) -> None:
    """Print the result in words, then a row for each format and sum, a column for each number of ranks."""
    show_words(console, answer(found))
    sizes = list(dict.fromkeys(each.ranks for each in found))
    table = BenchTable("relative error", *(f"{ranks} ranks" for ranks in sizes))
    for code, name in dict.fromkeys((each.format, each.algorithm) for each in found):
        shares = [each.error for each in found if (each.format, each.algorithm) == (code, name)]
        table.add_row(f"{code}, {NAMES[name]}", *(f"{each:.2%}" for each in shares))
    table.show(console)


SHORT = 9
"""The characters that a heading may always have, even above narrow cells."""


class BenchTable:
    """A table: names on the left, figures on the right. `others` are the headings of the figures."""

    def __init__(self, first: str, *others: str) -> None:
        self.headings, self.rows = (first, *others), list[tuple[str, ...]]()

    def add_row(self, *cells: str) -> None:
        self.rows.append(cells)

    def show(self, console: Console) -> None:
        """Print it as wide as the console; columns that do not fit are printed below the others."""
        columns = []
        for number, heading in enumerate(self.headings[1:], 1):
            cells = [row[number] for row in self.rows]
            columns.append(Column(in_two_lines(heading, max([SHORT, *map(len, cells)])), cells))
        show_grid(console, [row[0] for row in self.rows], columns, self.headings[0])


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


def ratios(figures: dict[str, Any]) -> tuple[str, str]:
    ratio, (low, high) = figures["ratio"], figures["ratio_range"]
    return f"{ratio:.3f}", f"{low:.3f} … {high:.3f}"


def show_collectives(
    console: Console, found: Sequence[TimedCollective], library: str, switches: Mapping[str, int],
    line: Mapping[str, float],
) -> None:
    """Print a table for each collective: a row for each size, a column for each algorithm, against the library's own
    call."""
    for collective in dict.fromkeys(each.collective for each in found):
        some = [each for each in found if each.collective == collective]
        names = [name for name in dict.fromkeys(each.algorithm for each in some) if name != OWN]
        show_words(console, f"{collective} on {some[0].ranks} ranks: times of {library}, and ratios to them; "
                            "*: chosen by \"auto\"; GB/s: its bandwidth and its bus bandwidth")
        table = BenchTable("bytes", "µs", *names, "GB/s", "bus GB/s")
        for size in dict.fromkeys(each.vector_bytes for each in some):
            at = {each.algorithm: each for each in some if each.vector_bytes == size}
            best = next((each for each in at.values() if each.chosen), at[OWN])
            cells = [f"{at[name].document()['ratio']:.2f}{'*' * at[name].chosen}" for name in names]
            figures = best.document()
            table.add_row(f"{size:,}", f"{1e6 * at[OWN].middle:.1f}", *cells,
                          f"{figures['algorithm_bandwidth'] / 1e9:.2f}", f"{figures['bus_bandwidth'] / 1e9:.2f}")
        table.show(console)
    for collective, most_bytes in switches.items():
        console.print(f"{collective}: the algorithm for short vectors is faster up to {most_bytes:,} bytes; "
                      f"switch_at({{\"{collective}\": {most_bytes}}}) lets \"auto\" change there")
    console.print(f"Fitted to the ring: a message takes {1e6 * line['message_seconds']:.1f} µs and "
                  f"{1e9 * line['byte_seconds']:.3f} ns for each byte")
