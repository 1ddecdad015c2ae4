"""The outcome of a run in the terminal: a line for each row, facts that all rows share, failures, and the verdict.

The table is for a reader who has never seen it. Whether bits are equal comes first, then the bytes that a rank keeps
and sends, then its peak. All bytes have one unit, which the headings name, and bars, so that rows can be compared by
eye. Every heading and every stage has its line below. Bytes for each parameter, messages and digests are for experts:
`-v` adds them.

Everything fits into 80 columns and reads without colour; a narrower terminal gets fewer columns.
"""

import json
import math
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.text import Text

from zerosim.optim.scaling import LOWEST_SCALE, skipped_in_vain
from zerosim.report.bars import KINDS, bar, stacked
from zerosim.report.conclusion import show_conclusion
from zerosim.report.details import show_details
from zerosim.report.figures import far_kept, far_kept_as_due, far_tiers, fullest, mean_sent, memory_unit
from zerosim.report.grid import GAP, Column, longest, show_grid, show_words
from zerosim.report.legend import WRONG, show_legend
from zerosim.report.timeline import show_timeline
from zerosim.report.times import show_times, warning
from zerosim.verdict.apart import Apart
from zerosim.verdict.diagnosis import Divergence
from zerosim.verdict.outcome import Outcome, TrainedRow
from zerosim.words import (
    FAR,
    TESTS,
    grouped,
    ignored_in_words,
    in_one_unit,
    joined_names,
    plural,
    short_digest,
    spread,
    tested,
)

MOST_NAME = 16
"""The most columns of names, if figures could have bars beside them."""

BARS = ((32, 18), (16, 12), (8, 6), (0, 0))
"""The columns of the bars of kept and sent bytes, widest first: quarters, thirds and halves are whole columns."""


def show_heading(console: Console, title: str, caption: str, setting: str) -> None:
    """Show the title, the caption and the world of a run before it begins."""
    for words, style in ((title, "bold"), (caption, ""), (setting, "dim")):
        if words:
            show_words(console, words, style=style)


def show_outcome(
    console: Console, outcome: Outcome, shared_cores: int = 0, *, verbose: bool = False, timed: bool = False,
    timeline: bool = False, transport: str = "",
) -> None:
    """Show the results of each row, the facts that all share, the failures, and the verdict.

    Traced times are shown too, as a `timeline` if requested. `verbose` adds the figures that the table leaves out and
    the `transport`. `timed` shows the time of a step, for worlds in which it means something. If there are more ranks
    than cores, `shared_cores` is the number of cores.
    """
    if outcome.trained:
        table = show_table(console, outcome)
        show_shared(console, outcome)
        console.print()
        show_legend(console, outcome, table)
        show_ignored(console, [(row.name, row.config.ignored) for row in outcome.trained])
        warned = warning(outcome, timed=timed, shared_cores=shared_cores)
        if timeline:
            show_timeline(console, outcome, warned=warned)
        show_times(console, outcome, warned=warned)
        if verbose:
            show_details(console, outcome, timed=timed, warned=warned)
            show_words(console, transport, style="dim")
    for config, shortage in outcome.did_not_fit:
        show_words(console, f"{config.name} does not fit: {shortage}")
    show_skipped(console, outcome)
    for stage in outcome.trained:
        if stage.first_divergence is not None:
            show_divergence(console, stage, stage.first_divergence)
    for apart in outcome.apart:
        show_apart(console, apart)
    if outcome.on_other_ranks:
        show_other_ranks(console, outcome)
    show_conclusion(console, outcome)


def show_ignored(console: Console, rows: Sequence[tuple[str, Mapping[str, str]]]) -> None:
    """Show the keys of [parallel] that have no effect on some rows, if any."""
    for words in ignored_in_words(rows):
        show_words(console, words, style="yellow")


def show_table(console: Console, outcome: Outcome) -> list[Column]:
    """Show the main table, with bars beside figures if there is room; returns its columns."""
    names = [row.config.name for row in outcome.rows]
    beside = console.width - min(longest(names), MOST_NAME)
    *wider, narrowest = (columns(outcome, *rooms) for rooms in BARS)
    found = next((each for each in wider if taken(each) <= beside), narrowest)
    show_grid(console, names, found)
    return found


def taken(found: Sequence[Column]) -> int:
    """The terminal columns that these columns need."""
    return sum(GAP + column.width for column in found)


def columns(outcome: Outcome, for_kept: int, for_sent: int) -> list[Column]:
    """Whether bits are the same and, if there were steps, the bytes that a rank keeps, sends and has at the peak.

    Bars of kept and sent bytes have these numbers of terminal columns.
    """
    compared = any(stage.compared_with for stage in outcome.trained)
    found = [same_bits(outcome)] if compared or outcome.did_not_fit else []
    if not outcome.scenario.train.steps:
        return found
    far = [kept_far(outcome, tier) for tier in far_tiers(outcome)]
    return [*found, kept(outcome, for_kept), *far, sent(outcome, for_sent), peaks(outcome)]


def same_bits(outcome: Outcome) -> Column:
    """The column that says whether a row's bits equal its reference's, or that it did not fit."""
    partners = {stage.compared_with for stage in outcome.trained} - {None}
    partner = "one process" if partners <= {"one process"} else "another row"
    words = {None: Text("–"), True: Text("yes", style="green"), False: Text("NO", style="bold red")}
    cells = [words[stage.equal] for stage in outcome.trained]
    misfit = Text("does not fit", style="yellow")
    return Column(f"same bits as\n{partner}" if partners else "", among(outcome, cells, misfit))


def kept(outcome: Outcome, room: int) -> Column:
    """The bytes kept by the rank with the highest peak: their sum, and a bar by kind."""
    unit, held = memory_unit(outcome), [fullest(stage).figures.resting_bytes for stage in outcome.trained]
    sums = [sum(found.values()) for found in held]
    wrong = [stage.config.steps_here > 0 and not all(rank.rests for rank in stage.memory) for stage in outcome.trained]
    bars = [stacked([found[kind.name] for kind in KINDS], max(sums), room) for found in held]
    cells = drawn(marked(in_one_unit(sums, unit), wrong), bars, room)
    return Column(f"each rank\nkeeps, {unit.name}", among(outcome, cells), to_the_left=room > 0)


def kept_far(outcome: Outcome, tier: str) -> Column:
    """The bytes that the same rank keeps in another tier of memory than the device."""
    unit, counts = memory_unit(outcome), [sum(far_kept(fullest(stage), tier).values()) for stage in outcome.trained]
    wrong = [not all(far_kept_as_due(rank, tier) for rank in stage.memory) for stage in outcome.trained]
    return Column(f"{FAR[tier]}\n{unit.name}", among(outcome, marked(in_one_unit(counts, unit), wrong)))


def sent(outcome: Outcome, room: int) -> Column:
    """The bytes that a rank sends in a step, the mean over ranks."""
    unit, counts = memory_unit(outcome), [mean_sent(stage) for stage in outcome.trained]
    wrong = [not all(rank.holds for rank in stage.traffic) for stage in outcome.trained]
    bars = [bar(count, max(counts), room) for count in counts]
    cells = drawn(marked(in_one_unit(counts, unit), wrong), bars, room)
    return Column(f"sends\na step, {unit.name}", among(outcome, cells), to_the_left=room > 0)


def peaks(outcome: Outcome) -> Column:
    """The peaks of rows, each of the rank with the highest."""
    unit = memory_unit(outcome)
    wrong = [not all(rank.peaks for rank in stage.memory) for stage in outcome.trained]
    counts = [fullest(stage).figures.peak_bytes["total"] for stage in outcome.trained]
    return Column(f"peak\n{unit.name}", among(outcome, marked(in_one_unit(counts, unit), wrong)))


def marked(figures: Sequence[str], wrong: Sequence[bool]) -> list[Text]:
    """Figures with a mark at those that differ from the formula's."""
    pairs = zip(figures, wrong, strict=True)
    return [Text(f"{WRONG}{figure}", style="bold red") if bad else Text(figure) for figure, bad in pairs]


def drawn(figures: Sequence[Text], bars: Sequence[Text], room: int) -> list[Text]:
    """Each figure, flush right, with its bar if there is room."""
    if not room:
        return list(figures)
    width, cells = max(map(len, figures)), []
    for figure, beside in zip(figures, bars, strict=True):
        cell = Text.assemble(" " * (width - len(figure)), figure, " ", beside)
        cell.pad_right(width + 1 + room - len(cell))
        cells.append(cell)
    return cells


def among(outcome: Outcome, cells: Sequence[Text], otherwise: Text | None = None) -> list[Text]:
    """The cells of trained rows, with those of rows that did not fit between them."""
    left = iter(cells)
    return [next(left) if row.trained else otherwise or Text() for row in outcome.rows]


def recomputed(stage: TrainedRow) -> float:
    """The ratio of all matrix products to those of forward and backward alone."""
    found = {what: sum(each[what] for each in stage.measured.operations) for what in stage.formula_operations}
    return sum(found.values()) / max(found["forward"] + found["backward"], 1)


def show_shared(console: Console, outcome: Outcome) -> None:
    """Show each fact once if all rows share it, else with its rows."""
    stages, steps, dataset = outcome.trained, outcome.scenario.train.steps, outcome.experiment.dataset
    facts: dict[str, list[str]] = {}
    if steps:
        facts["final loss"] = [f"{float(stage.measured.losses[-1][0]):.4g}" for stage in stages]
    for what in ("weights", "gradients"):
        errors = [stage.measured.wire_errors.get(what) for stage in stages]
        if any(errors):
            facts[f"error of {what} as codes"] = [as_codes(error) for error in errors]
    if dataset.x_test is not None:
        tests = [stage.measured.test for stage in stages if stage.measured.test is not None]
        facts[TESTS[dataset.measure]] = [tested(dataset.measure, test) for test in tests]
    if all(stage.measured.sample for stage in stages):
        facts["says"] = [json.dumps(stage.measured.sample, ensure_ascii=False) for stage in stages]
    if any(sum(each["recomputation"] for each in stage.measured.operations) for stage in stages):
        facts["floating-point operations"] = [f"×{recomputed(stage):.3g}" for stage in stages]
    digests = [short_digest(stage.measured.weights_sha256) for stage in stages]
    if len(set(digests)) > 1:
        facts["weights SHA-256"] = digests
    same = [f"{what} {found[0]}" for what, found in facts.items() if len(set(found)) == 1]
    alike = ["the same weights"] if len(stages) > 1 and len(set(digests)) == 1 else []
    prefix = {1: "", 2: "In both rows: "}.get(len(stages), f"In all {len(stages)} rows: ")
    show_words(console, f"{prefix}{', '.join([plural(steps, 'step'), *same, *alike])}")
    for what, found in facts.items():
        if len(set(found)) > 1:
            show_words(console, sentence(f"{what}: {grouped([stage.name for stage in stages], found)}"))


def as_codes(error: Mapping[str, float | None] | None) -> str:
    """
    >>> as_codes({"relative": 0.00781, "ulps": 65536, "bits": 7.0}), as_codes(None)
    ('0.00781', 'none')
    """
    relative = None if error is None else error["relative"]
    return "none" if relative is None else f"{relative:.3g}"


def sentence(words: str) -> str:
    return words[:1].upper() + words[1:]


def show_skipped(console: Console, outcome: Outcome) -> None:
    """Show the rows that did not train because gradients overflowed at every loss scale, if there are any."""
    steps = outcome.scenario.train.steps
    updates = {row.name: row.measured.updates for row in outcome.trained}
    lost = {name: steps - done for name, done in updates.items() if skipped_in_vain(done, steps - done)}
    if lost:
        skipped = [f"{count:,}" for count in sorted(lost.values())]
        show_words(
            console,
            f"{joined_names(list(lost))}: gradients overflowed float16 in {spread(skipped)} of "
            f"{plural(steps, 'step')}, which changed nothing but the loss scale: it halves, down to "
            f"{LOWEST_SCALE:.3g}. Scale the data down, take more steps, or set train.precision to bf16.",
            style="yellow",
        )


def show_divergence(console: Console, stage: TrainedRow, found: Divergence) -> None:
    """Show the first differing bits, and both orders of addition if these differ."""
    show_words(console, f"{stage.name}: {divergence(found)}", style="red")
    if stage.order and stage.order["ours"] != stage.order["reference"]:
        for side, order in stage.order.items():
            show_words(console, order, key=f"    {side + ' adds':<15} ")


def show_apart(console: Console, found: Apart) -> None:
    """Show why two rows differ although each equals one process."""
    one, other = found.values
    index = f"[{', '.join(map(str, found.index))}]" if found.index else ""
    console.print()
    told = f"{found.other} is not {found.first}, and each has the bits of one process. Reason:"
    show_words(console, told, style="bold")
    show_words(
        console,
        f"They first differ in step {found.step}: the {found.what} of {found.name}{index} is {one!r} in {found.first} "
        f"and {other!r} in {found.other} ({plural(found.ulps, 'ULP')} apart). "
        f"{found.cause[:1].upper()}{found.cause[1:]}."
    )
    orders = zip(found.chunks, found.orders, strict=True)
    adding = list(dict.fromkeys(f"adds it in chunk {chunk}, {order}" for chunk, order in orders))
    for name, how in zip((found.first, found.other), adding, strict=False):
        who = name if len(adding) > 1 else f"each of {found.first} and {found.other}"
        show_words(console, f"{who} {how}", key="    ")
    counts = "   ".join(f"{name}: {count:,}" for name, count in found.histogram.items() if count)
    show_words(console, f"elements by ULPs apart: {counts}", key="    ")


def show_other_ranks(console: Console, outcome: Outcome) -> None:
    """Show the digest of the weights on every number of ranks; if rows differ, with their names."""
    ranks = outcome.scenario.world.ranks
    found: dict[int, dict[str, list[str]]] = {}
    ours = [(ranks, stage.name, stage.measured.weights_sha256) for stage in outcome.trained]
    others = [(other.ranks, other.name, other.weights_sha256) for other in outcome.on_other_ranks]
    for count, name, digest in [*ours, *others]:
        found.setdefault(count, {}).setdefault(digest, []).append(name)
    console.print("SHA-256 of the weights", style="bold")
    for count, by_digest in sorted(found.items()):
        for digest, names in by_digest.items():
            whose = f"  {joined_names(names)}" * (len(by_digest) > 1)
            show_words(console, f"{short_digest(digest)}{whose}", key=f"{plural(count, 'rank'):>8}  ")


def divergence(found: Divergence) -> str:
    """One line: the place of the first difference, both values, and their distance."""
    index = f"[{', '.join(map(str, found.index))}]" if found.index else ""
    what = f"{found.state} of {found.name}" if found.state else found.name
    apart = "not comparable in ULPs" if found.ulps is None else f"{found.ulps} ULP apart"
    return (
        f"after step {found.step}, rank {found.rank} holds {what}{index} = {value(found.ours, found.ours_bits)}, "
        f"one process {value(found.reference, found.reference_bits)} ({apart}; chunk {found.chunk})"
    )


def value(number: float, bits: str) -> str:
    """A number, with its bits if these are not unique.

    >>> value(0.5, "0x3f000000"), value(-0.0, "0x80000000")
    ('0.5', '-0.0 (0x80000000)')
    """
    return f"{number!r} ({bits})" if number == 0 or math.isnan(number) else f"{number!r}"
