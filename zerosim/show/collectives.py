"""The outcome of a scenario of collectives, in the terminal and as a JSON document."""

from typing import Any

from rich.console import Console

from zerosim.core.bits import digest
from zerosim.core.words import plural
from zerosim.proofs.programs import CollectivesOutcome, spread
from zerosim.scenario import resolved
from zerosim.show.document import plain
from zerosim.show.grid import Column, show_grid, show_words
from zerosim.show.shown import Shown


def shown_collectives(outcome: CollectivesOutcome, world: dict[str, Any]) -> Shown:
    """The outcome of a scenario of collectives that displays itself as `zerosim run` prints it.

    A row, one for each rank of each program, has `name`, `rank`, `sent_bytes`, `messages`, `result_sha256`.
    """
    verdict = verdict_of(outcome)
    return Shown(
        outcome, outcome.passed, verdict, f"<outcome of {outcome.scenario.title!r}: {verdict}>",
        show=lambda console: show_collectives(console, outcome),
        make_document=lambda: collectives_document(outcome, world), width=80,
        rows_of=lambda document: [
            {"name": program["name"], "rank": rank, "sent_bytes": sent, "messages": messages, "result_sha256": sha256}
            for program in document["programs"]
            for rank, (sent, messages, sha256) in enumerate(
                zip(program["sent_bytes"], program["messages"], program["results_sha256"], strict=True))])


def verdict_of(outcome: CollectivesOutcome) -> str:
    """PASSED or FAILED, with the claims that do not hold."""
    count, failed = len(outcome.findings), [finding.claim for finding in outcome.findings if not finding.holds]
    if not count:
        return "nothing was claimed"
    if failed:
        verb = "does" if len(failed) == 1 else "do"
        return f"FAILED: {len(failed)} of {plural(count, 'claim')} {verb} not hold: {'; '.join(failed)}"
    all_of = "both" if count == 2 else f"all {count}"
    return f"PASSED: {'what was claimed holds' if count == 1 else f'{all_of} claims hold'}"


def show_collectives(console: Console, outcome: CollectivesOutcome) -> None:
    """Show a row for each program, a sentence for each claim with its observation, and the verdict."""
    show_grid(console, [program.program.name for program in outcome.programs], [
        Column("messages\nper rank", [spread(program.messages) for program in outcome.programs]),
        Column("bytes sent\nper rank", [spread(program.sent_bytes) for program in outcome.programs])])
    for finding in outcome.findings:
        if finding.holds:
            show_words(console, f"{finding.seen} (as claimed)", key="✓ ", style="green")
        else:  # with a command to be copied, so in one line
            words = f"✗ does not hold: {finding.claim}; seen: {finding.seen}"
            console.print(words, style="red", markup=False, soft_wrap=True)
    colour = ("green" if outcome.passed else "red") if outcome.findings else ""
    console.print(verdict_of(outcome), style=f"bold {colour}", markup=False, soft_wrap=not console.is_terminal)


def collectives_document(outcome: CollectivesOutcome, world: dict[str, Any]) -> dict[str, Any]:
    """The outcome of a scenario of collectives in JSON's own types."""
    document: dict[str, Any] = plain({
        "schema": "zerosim.collective/1",
        "title": outcome.scenario.title,
        "scenario": resolved(outcome.scenario),
        "world": world,
        "passed": outcome.passed,
        "programs": [{
            "name": program.program.name,
            "calls": [call.name for call in program.program.calls],
            "sent_bytes": program.sent_bytes,
            "messages": program.messages,
            "results_sha256": [None if result is None else digest(result).hex() for result in program.results],
        } for program in outcome.programs],
        "findings": [vars(finding) for finding in outcome.findings],
    })
    return document
