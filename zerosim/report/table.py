"""The outcome of a run in the terminal: one row a stage, then the verdict in one line."""

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from zerosim.outcome import Outcome, StageOutcome
from zerosim.stages import STAGES
from zerosim.verdict import Divergence


def show_heading(console: Console, title: str, caption: str, setting: str) -> None:
    """What is about to run, and in which world."""
    if title:
        console.print(f"[bold]{escape(title)}[/]")
    if caption:
        console.print(escape(caption))
    console.print(f"[dim]{escape(setting)}[/]")


def show_outcome(console: Console, outcome: Outcome) -> None:
    """What was computed and sent, what was kept, what diverged, and the verdict."""
    if outcome.stages:
        console.print(table(outcome))
        if outcome.recipe.scenario.train.steps:
            console.print(memory_table(outcome))
    for name, shortage in outcome.shortages.items():
        console.print(f"{STAGES[name].title} does not fit: {shortage}", highlight=False)
    for stage in outcome.stages:
        if stage.first_divergence is not None:
            show_divergence(console, stage, stage.first_divergence)
    if outcome.on_other_ranks:
        show_other_ranks(console, outcome)
    colour = "bold green" if outcome.passed else "bold red"
    console.print(f"[{colour}]{verdict(outcome)}[/]")


def show_divergence(console: Console, stage: StageOutcome, found: Divergence) -> None:
    """Where bits first differ, and why if it is by nature, else in which order each side adds."""
    colour = "yellow" if stage.by_nature else "red"
    console.print(f"[{colour}]{stage.name}: {escape(divergence(found))}[/]", highlight=False)
    if stage.by_nature:
        console.print(f"    by its nature: {stage.by_nature}", highlight=False)
        return
    for side, order in (stage.order or {}).items():
        console.print(f"    {side + ' adds':<15} {order}", highlight=False)


def show_other_ranks(console: Console, outcome: Outcome) -> None:
    """The digest of the weights on every number of ranks, a line for each that all stages share."""
    ranks = outcome.recipe.scenario.world.ranks
    found = [(ranks, stage.weights_sha256) for stage in outcome.stages]
    found += [(other.ranks, other.weights_sha256) for other in outcome.on_other_ranks]
    for count, digest in sorted(set(found)):
        console.print(f"{count:>3} rank{'s' if count > 1 else ' '}  SHA-256 of the weights {digest}", highlight=False)


def table(outcome: Outcome) -> Table:
    """A row a stage: equal or not, final loss, test figure, bytes sent against the formula, time."""
    table = plain_table("stage", "bits")
    table.add_column("final\nloss", justify="right")
    if outcome.recipe.dataset.x_test is not None:
        labels = outcome.recipe.dataset.classes is not None
        table.add_column("test\naccuracy" if labels else "test\nerror", justify="right")
    table.add_column("sent per\nrank and step", justify="right")
    table.add_column("")
    table.add_column("messages", justify="right")
    table.add_column("ms per\nstep", justify="right")
    for stage in outcome.stages:
        table.add_row(*row(outcome, stage))
    return table


def plain_table(*headings: str) -> Table:
    """A table without lines."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading)
    return table


def row(outcome: Outcome, stage: StageOutcome) -> list[str]:
    """The cells of `table` for one stage."""
    steps = outcome.recipe.scenario.train.steps
    test = []
    if stage.test is not None:
        labels = outcome.recipe.dataset.classes is not None
        test.append(f"{stage.test:.2%}" if labels else f"{stage.test:.4g}")
    return [
        stage.name,
        bits(stage),
        f"{float(stage.losses[-1][0]):.6f}" if steps else "-",
        *test,
        f"{extent([rank.sent_bytes // max(steps, 1) for rank in stage.traffic])} B",
        formula(stage),
        extent([rank.messages // max(steps, 1) for rank in stage.traffic]),
        f"{1e3 * stage.seconds / steps:.2f}" if steps else "-",
    ]


def bits(stage: StageOutcome) -> str:
    """Equal or not, and whether it could be."""
    if stage.equal is None:
        return "[dim]not compared[/]"
    if stage.equal:
        return "[green]equal[/]"
    return "[yellow]other by nature[/]" if stage.by_nature else "[red]differ[/]"


def extent(counts: Sequence[int]) -> str:
    """One number; where ranks differ, the smallest and the largest."""
    return " … ".join(f"{count:,}" for count in dict.fromkeys([min(counts), max(counts)]))


def formula(stage: StageOutcome) -> str:
    """Whether the bytes sent are the formula's."""
    words = f"{stage.volume:.4g} P (N−1)/N"
    holds = all(rank.holds for rank in stage.traffic)
    return f"[green]= {words}[/]" if holds else f"[red]≠ {words}[/]"


def memory_table(outcome: Outcome) -> Table:
    """A row a stage: bytes that the rank with most of them keeps between steps and holds at the peak."""
    table = plain_table("kept per rank")
    for kind in ("weights", "gradients", "optimizer"):
        table.add_column(kind, justify="right")
    table.add_column("")
    table.add_column("padding", justify="right")
    table.add_column("peak", justify="right")
    for kind in ("activations", "buffers"):
        table.add_column(kind, justify="right")
    for stage in outcome.stages:
        most = max(stage.memory, key=lambda rank: rank.peak_bytes["total"])
        rests = all(rank.rests for rank in stage.memory)
        table.add_row(
            stage.name,
            *(f"{count:,} B" for count in most.resting_bytes.values()),
            "[green]= formula[/]" if rests else "[red]≠ formula[/]",
            *(f"{count:,} B" for count in (
                most.padding_bytes, most.peak_bytes["total"], most.peak_bytes["activations"], most.peak_bytes["buffers"]
            )),
        )
    return table


def divergence(found: Divergence) -> str:
    """One line: where the first difference is, both values, and how far apart they are."""
    where = found.parameter if found.layer is None else f"layers.{found.layer}.{found.parameter}"
    index = f"[{', '.join(map(str, found.index))}]" if found.index else ""
    what = f"{found.state} of {where}" if found.state else where
    apart = "not comparable in ULPs" if found.ulps is None else f"{found.ulps} ULP apart"
    return (
        f"after step {found.step}, rank {found.rank} holds {what}{index} = {found.ours!r}, "
        f"one process {found.reference!r} ({apart}; chunk {found.chunk})"
    )


def verdict(outcome: Outcome) -> str:
    """The run in one line."""
    if not outcome.passed:
        failures = [f"{name}: {what}" for name, what in outcome.failures]
        return f"FAILED: {'; '.join(failures)}"
    steps = outcome.recipe.scenario.train.steps
    ranks = outcome.recipe.scenario.world.ranks
    titles = ", ".join(stage.name for stage in outcome.stages)
    compared = "not compared with one process"
    if outcome.recipe.scenario.check.reference:
        other = [stage.name for stage in outcome.stages if stage.equal is False]
        compared = "every bit equal to one process" + f", but for {', '.join(other)} by nature" * bool(other)
    elif len(outcome.stages) > 1:
        compared = f"every bit equal to {outcome.stages[0].name}"
    return f"PASSED: {titles} on {ranks} rank{'s' * (ranks > 1)}, {steps} steps: {compared}"
