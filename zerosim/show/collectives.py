"""The outcome of a scenario of collectives, in the terminal and as a JSON document."""

from dataclasses import asdict
from typing import Any

from rich.console import Console

from zerosim.core.digests import digest
from zerosim.core.words import plural
from zerosim.proofs.programs import CollectivesOutcome, spread
from zerosim.scenario import CollectiveScenario, resolved
from zerosim.show.document import plain
from zerosim.show.grid import Column, show_grid, show_words
from zerosim.show.shown import Shown, printed

SCHEMA = "zerosim.collective/1"


def described_values(scenario: CollectiveScenario) -> str:
    """The ranks' input values, in a few words."""
    values = scenario.values
    lengths = [len(values.given[0])] if values.given else values.lengths
    kind = "given" if values.given else "random"
    return f"{' + '.join(f'{length:,}' for length in lengths)} {kind} {values.dtype} on each rank"


def show_collectives(console: Console, outcome: CollectivesOutcome) -> None:
    """Show a row for each program, a sentence for each claim with its observation, and the verdict."""
    names = [program.program.name for program in outcome.programs]
    show_grid(console, names, [
        Column("messages\nper rank", [spread(program.messages) for program in outcome.programs]),
        Column("bytes sent\nper rank", [spread(program.sent_bytes) for program in outcome.programs]),
    ])
    for finding in outcome.findings:
        if finding.holds:
            show_words(console, f"{finding.seen} (as claimed)", key="✓ ", style="green")
        else:  # with a command to be copied, so in one line
            words = f"✗ does not hold: {finding.claim}; seen: {finding.seen}"
            console.print(words, style="red", markup=False, soft_wrap=True)
    alone = not console.is_terminal
    failed = [finding.claim for finding in outcome.findings if not finding.holds]
    if not outcome.findings:
        console.print("nothing was claimed", style="bold")
    elif failed:
        verb = "does" if len(failed) == 1 else "do"
        claims = f"{len(failed)} of {plural(len(outcome.findings), 'claim')}"
        words = f"FAILED: {claims} {verb} not hold: {'; '.join(failed)}"
        console.print(words, style="bold red", markup=False, soft_wrap=alone)
    else:
        console.print(f"PASSED: {held(len(outcome.findings))}", style="bold green", soft_wrap=alone)


def held(count: int) -> str:
    """
    >>> held(1), held(3)
    ('what was claimed holds', 'all 3 claims hold')
    """
    return "what was claimed holds" if count == 1 else f"{'both' if count == 2 else f'all {count}'} claims hold"


def shown_collectives(outcome: CollectivesOutcome, world: dict[str, Any]) -> Shown:
    """The outcome of a scenario of collectives that displays itself as `zerosim run` prints it.

    A row, one for each rank of each program, has `name`, `rank`, `sent_bytes`, `messages`, `result_sha256`.
    """
    verdict = printed(lambda console: show_collectives(console, outcome), 80).splitlines()[-1]
    return Shown(
        outcome, outcome.passed, verdict, f"<outcome of {outcome.scenario.title!r}: {verdict}>",
        show=lambda console: show_collectives(console, outcome),
        make_document=lambda: collectives_document(outcome, world), width=80,
        rows_of=lambda document: [
            {"name": program["name"], "rank": rank, "sent_bytes": sent, "messages": messages, "result_sha256": sha256}
            for program in document["programs"]
            for rank, (sent, messages, sha256) in enumerate(
                zip(program["sent_bytes"], program["messages"], program["results_sha256"], strict=True))])


def collectives_document(outcome: CollectivesOutcome, world: dict[str, Any]) -> dict[str, Any]:
    """The outcome of a scenario of collectives in JSON's own types."""
    found: dict[str, Any] = plain(
        {
            "schema": SCHEMA,
            "title": outcome.scenario.title,
            "scenario": resolved(outcome.scenario),
            "world": world,
            "passed": outcome.passed,
            "programs": [
                {
                    "name": program.program.name,
                    "calls": [call.name for call in program.program.calls],
                    "sent_bytes": program.sent_bytes,
                    "messages": program.messages,
                    "results_sha256": [None if r is None else digest(r).hex() for r in program.results],
                }
                for program in outcome.programs
            ],
            "findings": [asdict(finding) for finding in outcome.findings],
        }
    )
    return found
