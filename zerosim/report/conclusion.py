"""How a run ends: what did not hold, and in the last line whether everything did."""

from rich.console import Console

from zerosim.report.figures import joined, plural
from zerosim.report.grid import show_words
from zerosim.verdict.outcome import Outcome


def show_conclusion(console: Console, outcome: Outcome) -> None:
    """PASSED or FAILED in the last line, in several where it is a terminal's; failures beyond a line stand above it."""
    alone = not console.is_terminal
    if outcome.passed:
        console.print(passed(outcome), style="bold green", markup=False, soft_wrap=alone)
        return
    whole = f"FAILED: {'; '.join(f'{name}: {what}' for name, what in outcome.failures)}"
    if len(whole) > console.width:
        for name, what in outcome.failures:
            show_words(console, f"{name}: {what}", style="red")
        whole = failed(outcome)
    console.print(whole, style="bold red", markup=False, soft_wrap=alone)


def verdict(outcome: Outcome) -> str:
    """PASSED or FAILED, and what did, in a line."""
    return passed(outcome) if outcome.passed else failed(outcome)


def passed(outcome: Outcome) -> str:
    """What was trained, and with what its bits were compared."""
    stages, ranks = outcome.stages, outcome.scenario.world.ranks
    rows = stages[0].name if len(stages) == 1 else plural(len(stages), "row")
    return f"PASSED: {rows} on {plural(ranks, 'rank')}: {compared(outcome)}"


def failed(outcome: Outcome) -> str:
    """How many checks did not hold, and of which rows."""
    names = list(dict.fromkeys(name for name, _ in outcome.failures))
    of = joined(names) if len(names) <= 4 else f"{len(names)} rows"
    return f"FAILED: {plural(len(outcome.failures), 'check')} did not hold, of {of}"


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
