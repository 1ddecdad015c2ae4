"""The end of a report: the failed checks, and PASSED or FAILED in the last line."""

from rich.console import Console

from zerosim.report.grid import show_words
from zerosim.stages import STAGES
from zerosim.verdict.outcome import Outcome
from zerosim.words import joined, joined_names, plural


def show_conclusion(console: Console, outcome: Outcome) -> None:
    """Print PASSED or FAILED as the last line; it may wrap on a terminal. Failures that need more than a line stand
    above."""
    alone = not console.is_terminal
    if claimed := untrained(outcome):
        show_words(console, f"Not checked: {joined(claimed)} must not fit, but no row here uses it")
    if outcome.passed:
        console.print(passed(outcome), style="bold green", markup=False, soft_wrap=alone)
        return
    whole = f"FAILED: {'; '.join(f'{name}: {what}' for name, what in outcome.failures)}"
    if len(whole) > console.width:
        for name, what in outcome.failures:
            show_words(console, f"{name}: {what}", style="red")
        whole = failed(outcome)
    console.print(whole, style="bold red", markup=False, soft_wrap=alone)


def untrained(outcome: Outcome) -> list[str]:
    """The stages with claims that no row trains, because an override has changed the rows."""
    trained = {row.stage for row in outcome.scenario.rows}
    return [STAGES[stage].title for stage in outcome.scenario.check.does_not_fit if stage not in trained]


def verdict(outcome: Outcome) -> str:
    """PASSED or FAILED with its subject, in a line."""
    return passed(outcome) if outcome.passed else failed(outcome)


def passed(outcome: Outcome) -> str:
    """The words for the trained rows, and for their reference."""
    stages, ranks = outcome.trained, outcome.scenario.world.ranks
    rows = stages[0].name if len(stages) == 1 else plural(len(stages), "row")
    return f"PASSED: {rows} on {plural(ranks, 'rank')}: {compared(outcome)}"


def failed(outcome: Outcome) -> str:
    """The number of failed checks, and their rows, in words."""
    names = list(dict.fromkeys(name for name, _ in outcome.failures))
    of = joined_names(names) if len(names) <= 4 else f"{len(names)} rows"
    return f"FAILED: {plural(len(outcome.failures), 'check')} did not hold, of {of}"


def compared(outcome: Outcome) -> str:
    """The words for the reference of every bit."""
    partners = {stage.compared_with for stage in outcome.trained}
    if partners == {"one process"}:
        resumed = any(stage.config.done for stage in outcome.trained)
        return f"every bit equal to one process{' that trained from the start' * resumed}"
    first = outcome.trained[0].name if outcome.trained else None
    if [stage.compared_with for stage in outcome.trained[1:]] == [first] * (len(outcome.trained) - 1) != []:
        return f"every bit equal to {first}"
    if partners <= {None}:
        return "not compared with one process"
    return "every bit equal where rows add in the same order, not compared with one process"
