"""The outcome of a run in the terminal: one row a stage, then the verdict in one line."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from zerosim.run import Outcome, StageOutcome
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
    """The table, what diverged, and the verdict."""
    console.print(table(outcome))
    for stage in outcome.stages:
        if stage.first_divergence is not None:
            console.print(
                f"[red]{STAGES[stage.stage].title}: {escape(divergence(stage.first_divergence))}[/]"
            )
            for side, order in (stage.order or {}).items():
                console.print(f"    {side + ' adds':<15} {order}", highlight=False)
    if outcome.on_other_ranks:
        show_other_ranks(console, outcome)
    colour = "bold green" if outcome.passed else "bold red"
    console.print(f"[{colour}]{verdict(outcome)}[/]")


def show_other_ranks(console: Console, outcome: Outcome) -> None:
    """The digest of the weights on every number of ranks, a line for each that all stages share."""
    ranks = outcome.recipe.scenario.world.ranks
    found = [(ranks, stage.weights_sha256) for stage in outcome.stages]
    found += [(other.ranks, other.weights_sha256) for other in outcome.on_other_ranks]
    for count, digest in sorted(set(found)):
        console.print(f"{count:>3} rank{'s' if count > 1 else ' '}  SHA-256 of the weights {digest}", highlight=False)


def table(outcome: Outcome) -> Table:
    """A row a stage: equal or not, final loss, test figure, bytes sent against the formula, time."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("stage")
    table.add_column("bits")
    table.add_column("final loss", justify="right")
    if outcome.recipe.dataset.x_test is not None:
        labels = outcome.recipe.dataset.classes is not None
        table.add_column("test accuracy" if labels else "test error", justify="right")
    table.add_column("sent per rank and step", justify="right")
    table.add_column("formula")
    table.add_column("ms per step", justify="right")
    for stage in outcome.stages:
        table.add_row(*row(outcome, stage))
    return table


def row(outcome: Outcome, stage: StageOutcome) -> list[str]:
    steps = outcome.recipe.scenario.train.steps
    test = []
    if stage.test is not None:
        labels = outcome.recipe.dataset.classes is not None
        test.append(f"{stage.test:.2%}" if labels else f"{stage.test:.4g}")
    return [
        STAGES[stage.stage].title,
        {True: "[green]equal[/]", False: "[red]differ[/]", None: "[dim]not compared[/]"}[stage.equal],
        f"{stage.losses[-1]:.6f}" if steps else "-",
        *test,
        sent(stage, steps),
        formula(stage),
        f"{1e3 * stage.seconds / steps:.2f}" if steps else "-",
    ]


def sent(stage: StageOutcome, steps: int) -> str:
    """Bytes per step; where ranks differ, the smallest and the largest."""
    counts = sorted({counts["sent_bytes"] // max(steps, 1) for counts in stage.traffic})
    return " … ".join(f"{count:,} B" for count in {counts[0]: 0, counts[-1]: 0})


def formula(stage: StageOutcome) -> str:
    words = f"{stage.volume} P (N−1)/N"
    return f"[green]= {words}[/]" if stage.traffic_holds else f"[red]≠ {words}[/]"


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
        failures = [f"{STAGES[stage].title}: {what}" for stage, what in outcome.failures]
        return f"FAILED: {'; '.join(failures)}"
    steps = outcome.recipe.scenario.train.steps
    ranks = outcome.recipe.scenario.world.ranks
    titles = ", ".join(STAGES[stage.stage].title for stage in outcome.stages)
    compared = (
        "every bit equal to one process"
        if outcome.recipe.scenario.check.reference
        else "not compared with one process"
    )
    return f"PASSED: {titles} on {ranks} rank{'s' * (ranks > 1)}, {steps} steps: {compared}"
