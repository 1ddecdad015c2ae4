"""What a scenario of collectives found out: in the terminal, and as a JSON document."""

from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from zerosim.carry import CarriedOut, spread
from zerosim.fingerprints import digest
from zerosim.report.document import plain
from zerosim.scenario import CollectiveScenario, resolved

SCHEMA = "zerosim.collective/1"


def described_values(scenario: CollectiveScenario) -> str:
    """What each rank brings, in a few words."""
    values = scenario.values
    lengths = [len(values.given[0])] if values.given else values.lengths
    kind = "given" if values.given else "random"
    return f"{' + '.join(f'{length:,}' for length in lengths)} {kind} {values.dtype} on each rank"


def show_carried_out(console: Console, outcome: CarriedOut) -> None:
    """A row a program, a sentence for each claim, the verdict."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading, side in (("program", "left"), ("messages per rank", "right"), ("bytes sent per rank", "right")):
        table.add_column(heading, justify=side)  # type: ignore[arg-type]
    for program in outcome.programs:
        table.add_row(escape(program.program.name), spread(program.messages), spread(program.sent_bytes))
    console.print(table)
    for finding in outcome.findings:
        mark = "[green]as claimed[/]" if finding.holds else f"[red]claimed was: {escape(finding.claim)}[/]"
        console.print(f"{escape(finding.seen)} ({mark})", highlight=False)
    if not outcome.findings:
        console.print("[bold]nothing was claimed[/]")
    elif outcome.passed:
        console.print(f"[bold green]PASSED: {len(outcome.findings)} claim(s) hold[/]")
    else:
        failed = [finding.claim for finding in outcome.findings if not finding.holds]
        console.print(f"[bold red]FAILED: {escape('; '.join(failed))}[/]")


def carried_out_document(outcome: CarriedOut, world: dict[str, Any]) -> dict[str, Any]:
    """The same as data."""
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
