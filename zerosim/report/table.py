"""The outcome of a run in the terminal: what each row computed, sent and held, what settles it, and the verdict.

Everything fits into 80 columns, and reads without colour.
"""

import math
from collections.abc import Mapping

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from zerosim.report.conclusion import conclusion
from zerosim.report.figures import common_unit, in_unit, joined, messages_per_step, plural, sent_per_step, short, spread
from zerosim.report.memory_table import Unit
from zerosim.scaling import LOWEST_SCALE, skipped_in_vain
from zerosim.verdict.diagnosis import Divergence
from zerosim.verdict.outcome import Outcome, StageOutcome

HELD = ("parameters", "gradients", "optimizer", "activations", "buffers", "total")
LONG_NAME = 16
"""Characters of a row's name that leave room for two spaces between columns."""


def show_heading(console: Console, title: str, caption: str, setting: str) -> None:
    """What is about to run, and in which world."""
    if title:
        console.print(f"[bold]{escape(title)}[/]")
    if caption:
        console.print(escape(caption))
    console.print(f"[dim]{escape(setting)}[/]")


def show_outcome(console: Console, outcome: Outcome) -> None:
    """What was computed and sent, what was held, what diverged, what that comes to, and the verdict."""
    if outcome.stages:
        console.print(table(outcome))
    if outcome.stages and outcome.scenario.train.steps:
        console.print(memory_table(outcome))
        show_padding(console, outcome)
    for config, shortage in outcome.shortages:
        console.print(f"{config.name} does not fit: {shortage}", highlight=False)
    show_skipped(console, outcome)
    for stage in outcome.stages:
        if stage.first_divergence is not None:
            show_divergence(console, stage, stage.first_divergence)
    if outcome.on_other_ranks:
        show_other_ranks(console, outcome)
    if len(outcome.stages) > 1:
        console.print(conclusion(outcome), markup=False, highlight=False)
    colour = "bold green" if outcome.passed else "bold red"
    console.print(verdict(outcome), style=colour, markup=False, highlight=False, soft_wrap=outcome.passed)


def show_padding(console: Console, outcome: Outcome) -> None:
    """That what rests is the formula's, if it is, and how much of it is padding."""
    if all(rank.rests for stage in outcome.stages for rank in stage.memory):
        paddings = sorted(rank.padding_bytes for stage in outcome.stages for rank in stage.memory)
        words = f"At rest: the formula's bytes, {spread(map(str, paddings))} B of padding included."
        console.print(words, style="dim", highlight=False)


def show_skipped(console: Console, outcome: Outcome) -> None:
    """Which rows did not train because gradients overflowed whatever the loss scale, if there are any."""
    steps = outcome.scenario.train.steps
    lost = [stage for stage in outcome.stages if skipped_in_vain(stage.updates, steps - stage.updates)]
    if lost:
        skipped = [f"{count:,}" for count in sorted(steps - stage.updates for stage in lost)]
        console.print(
            f"{joined([stage.name for stage in lost])}: gradients overflowed float16 in {spread(skipped)} of "
            f"{plural(steps, 'step')}, which changed nothing but the loss scale: it halves, down to "
            f"{LOWEST_SCALE:.3g}. Scale the data down, take more steps, or set train.precision to bf16.",
            style="yellow", markup=False, highlight=False,
        )


def show_divergence(console: Console, stage: StageOutcome, found: Divergence) -> None:
    """Where bits first differ, and in which orders the two sides add if these differ."""
    console.print(f"{stage.name}: {divergence(found)}", style="red", markup=False, highlight=False)
    if stage.order and stage.order["ours"] != stage.order["reference"]:
        for side, order in stage.order.items():
            console.print(f"    {side + ' adds':<15} {order}", highlight=False)


def show_other_ranks(console: Console, outcome: Outcome) -> None:
    """The digest of the weights on every number of ranks, a line for each that all stages share."""
    ranks = outcome.scenario.world.ranks
    found = [(ranks, stage.weights_sha256) for stage in outcome.stages]
    found += [(other.ranks, other.weights_sha256) for other in outcome.on_other_ranks]
    console.print("SHA-256 of the weights", style="bold", highlight=False)
    for count, digest in sorted(set(found)):
        console.print(f"{plural(count, 'rank'):>8}  {digest}", highlight=False)


def table(outcome: Outcome) -> Table:
    """A row a stage or variant: equal or not, final loss, test figure, bytes and messages sent, time."""
    unit = common_unit(max(rank.sent_bytes for stage in outcome.stages for rank in stage.traffic) // steps_of(outcome))
    tested = outcome.experiment.dataset.x_test is not None
    test = ["test" if outcome.experiment.dataset.classes is not None else "test\nerror"] * tested
    table = plain_table(
        outcome, "What each computes, and what a rank sends in a step",
        "", "bits", "final\nloss", *test, f"sent\n{unit.name}", "in P\n(N−1)/N", "messages", "ms per\nstep",
    )
    for stage in outcome.stages:
        table.add_row(*row(outcome, stage, unit))
    return table


def plain_table(outcome: Outcome, title: str, corner: str, *headings: str) -> Table:
    """A table without lines: the rows' names to the left, figures to the right."""
    gap = 1 if max(len(stage.name) for stage in outcome.stages) > LONG_NAME else 2
    table = Table(
        box=None, padding=(0, gap, 0, 0), pad_edge=False, header_style="bold",
        title=title, title_justify="left", title_style="dim",
    )
    table.add_column(corner)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def row(outcome: Outcome, stage: StageOutcome, unit: Unit) -> list[str]:
    """The cells of `table` for one stage."""
    steps = outcome.scenario.train.steps
    test = []
    if stage.test is not None:
        labels = outcome.experiment.dataset.classes is not None
        test.append(f"{stage.test:.2%}" if labels else f"{stage.test:.4g}")
    return [
        escape(stage.name),
        bits(stage),
        f"{float(stage.losses[-1][0]):.4g}" if steps else "–",
        *test,
        spread(in_unit(count, unit) for count in sent_per_step(stage, steps)),
        volume(stage),
        messages_per_step(stage, steps),
        short(1e3 * stage.seconds / steps) if steps else "–",
    ]


def steps_of(outcome: Outcome) -> int:
    """By which figures of the whole run are divided."""
    return max(outcome.scenario.train.steps, 1)


def bits(stage: StageOutcome) -> str:
    """Equal to what they are compared with or not."""
    if stage.equal is None:
        return "–"
    return "[green]equal[/]" if stage.equal else "[red]differ[/]"


def volume(stage: StageOutcome) -> str:
    """The formula in units of P (N − 1)/N, and whether the bytes sent are not that."""
    holds = all(rank.holds for rank in stage.traffic)
    return f"{stage.volume:.4g}" if holds else f"[red]≠ {stage.volume:.4g}[/]"


def memory_table(outcome: Outcome) -> Table:
    """Two lines a stage or variant: what the rank with the highest peak keeps between steps, and each kind's peak."""
    most = [max(stage.memory, key=lambda rank: rank.peak_bytes["total"]) for stage in outcome.stages]
    unit = common_unit(max(memory.peak_bytes["total"] for memory in most))
    table = plain_table(
        outcome, "What a rank keeps between steps, and the peak of each kind and of all",
        unit.name, "weights", "gradients", "optimizer", "activations", "buffers", "total",
    )
    for stage, memory in zip(outcome.stages, most, strict=True):
        table.add_row(escape(stage.name), *held(memory.resting_bytes, unit))
        if not memory.rests:
            table.add_row("  by formula", *held(memory.formula_bytes, unit), style="red")
        table.add_row("  at the peak", *held(memory.peak_bytes, unit), style="dim")
    return table


def held(counts: Mapping[str, int], unit: Unit) -> list[str]:
    """The figures of each kind, where there is one, and of all together."""
    known = {"total": sum(counts.values()), **counts}
    return [in_unit(known[kind], unit) if kind in known else "" for kind in HELD]


def divergence(found: Divergence) -> str:
    """One line: where the first difference is, both values, and how far apart they are."""
    where = found.parameter if found.layer is None else f"layers.{found.layer}.{found.parameter}"
    index = f"[{', '.join(map(str, found.index))}]" if found.index else ""
    what = f"{found.state} of {where}" if found.state else where
    apart = "not comparable in ULPs" if found.ulps is None else f"{found.ulps} ULP apart"
    return (
        f"after step {found.step}, rank {found.rank} holds {what}{index} = {value(found.ours, found.ours_bits)}, "
        f"one process {value(found.reference, found.reference_bits)} ({apart}; chunk {found.chunk})"
    )


def value(number: float, bits: str) -> str:
    """A number, with its bits where it does not tell them.

    >>> value(0.5, "3f000000"), value(-0.0, "80000000")
    ('0.5', '-0.0 (0x80000000)')
    """
    return f"{number!r} (0x{bits})" if number == 0 or math.isnan(number) else f"{number!r}"


def verdict(outcome: Outcome) -> str:
    """The run in one line."""
    if not outcome.passed:
        failures = [f"{name}: {what}" for name, what in outcome.failures]
        return f"FAILED: {'; '.join(failures)}"
    scenario = outcome.scenario
    titles = ", ".join(stage.name for stage in outcome.stages)
    return (
        f"PASSED: {titles} on {plural(scenario.world.ranks, 'rank')}, {plural(scenario.train.steps, 'step')}: "
        f"{compared(outcome)}"
    )


def compared(outcome: Outcome) -> str:
    """With what every bit was compared."""
    partners = {stage.compared_with for stage in outcome.stages}
    if partners == {"one process"}:
        return "every bit equal to one process"
    first = outcome.stages[0].name if outcome.stages else None
    if [stage.compared_with for stage in outcome.stages[1:]] == [first] * (len(outcome.stages) - 1) != []:
        return f"every bit equal to {first}"
    if partners <= {None}:
        return "not compared with one process"
    return "every bit equal where rows add in the same order, not compared with one process"
