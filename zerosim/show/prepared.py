"""A scenario ready to run, of training or of collectives, for `zerosim run` and `zs.run`; an outcome that shows itself.
"""

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from msgspec import structs
from rich.console import Console

from zerosim.core.bits import digest
from zerosim.core.errors import LaunchError, UsageError
from zerosim.core.words import joined, plural, printable, toml_value
from zerosim.observe.ledger import MEMORY_KINDS
from zerosim.proofs.programs import CollectivesOutcome, programs_of, run_collectives, spread
from zerosim.scenario import CollectiveScenario, Scenario, Source, load, resolved
from zerosim.scenario.schema import python_run
from zerosim.show.columns import plain_rows
from zerosim.show.document import RunDocument, document, plain, written
from zerosim.show.grid import Column, show_grid, show_words
from zerosim.show.page import page
from zerosim.show.pictures import files, svg
from zerosim.show.shown import Bundle, Page, Picture, Shown
from zerosim.show.table import show_run
from zerosim.training.keeping import resumptions
from zerosim.training.program import Progress
from zerosim.verdict.judged_run import local_world, prepare_run, run_on
from zerosim.verdict.outcome import Outcome
from zerosim.worlds.launcher import has_company
from zerosim.worlds.local import LocalWorld
from zerosim.worlds.world import World, world_document


@dataclass(frozen=True, repr=False)
class ShownOutcome(Shown):
    """An outcome that displays itself, with more tables of plain rows, and with the pictures of its page."""

    run: RunDocument = field(kw_only=True)

    def losses(self) -> list[dict[str, Any]]:
        """A plain dict for each step of each row: `name`, `step`, `loss`; the first step is 1."""
        return [{"name": row.name, "step": step, "loss": float(loss)}
                for row in self.run.rows for step, loss in enumerate(row.losses, 1)]

    def spans(self) -> list[dict[str, Any]]:
        """A plain dict for each activity of a rank in the traced steps of each row."""
        return [{"name": row.name, "step": step.step, **structs.asdict(span)} for row in self.run.rows
                for step in (row.trace.steps if row.trace else ()) for span in step.spans]

    def memory(self) -> list[dict[str, Any]]:
        """A plain dict for each change of a rank's memory in the traced steps of each row."""
        return [{"name": row.name, "step": step.step, "rank": step.rank, "ns": at["ns"],
                 **{kind: at.get(kind, 0) for kind in MEMORY_KINDS}}
                for row in self.run.rows for step in (row.trace.steps if row.trace else ()) for at in step.memory]

    def picture(self, name: str = "kept", row: str = "") -> Picture:
        """One picture of the page: `kept`, `sent`, `losses`; for a row `step`, `memory` or `partners`.

        Raises `UsageError` for an unknown picture, and if vl-convert is not installed.
        """
        names, specs = [row.name for row in self.run.rows], files(self.run.rows)
        if row and row not in names:
            raise UsageError(f"there is no row {row!r}; there are {joined(names)}")
        key = f"{name}-{names.index(row) + 1}" if row else name
        if key not in specs:
            raise UsageError(f"there is no picture {key!r}; there are {joined([*specs])}")
        return Picture(svg(specs[key]), f"{name}{f' of {row}' * bool(row)} in {self.run.title or 'a run'}")

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Bundle:
        """The printed tables, and pictures of kept and sent bytes below them, or why there are none."""
        try:
            specs = files(self.run.rows)
            drawn = [b64encode(svg(specs[name]).encode()).decode() for name in ("kept", "sent") if name in specs]
            below = "".join(f'<p><img src="data:image/svg+xml;base64,{image}"></p>' for image in drawn)
        except UsageError as error:
            below = f"<p>{error}</p>"
        return {"text/plain": str(self), "text/html": f"<pre>{escape(printable(str(self)))}</pre>{below}"}


def shown_outcome(outcome: Outcome, run: RunDocument, *, verbose: bool = False, times: bool = False) -> ShownOutcome:
    """The outcome of a run that displays itself: `print` shows the tables of `zerosim run`, a notebook pictures too."""
    return ShownOutcome(
        outcome, outcome.passed, run.verdict, f"<outcome of {run.title!r}: {run.verdict}>",
        show=lambda console: show_run(console, run, verbose=verbose, times=times), make_document=lambda: written(run),
        rows_of=lambda _: plain_rows(run), width=80,
        make_page=lambda: Page(page(run), f"all of {run.title or 'a run'}"), run=run)


def shown_collectives(outcome: CollectivesOutcome, world: dict[str, Any]) -> Shown:
    """The outcome of a scenario of collectives that displays itself as `zerosim run` prints it.

    A row, one for each rank of each program, has `name`, `rank`, `sent_bytes`, `messages`, `result_sha256`.
    """
    verdict = verdict_of(outcome)
    return Shown(
        outcome, outcome.passed, verdict, f"<outcome of {outcome.scenario.title!r}: {verdict}>",
        show=lambda console: show_collectives(console, outcome),
        width=80, make_document=lambda: dict(plain({
            "schema": "zerosim.collective/1", "title": outcome.scenario.title, "scenario": resolved(outcome.scenario),
            "world": world, "passed": outcome.passed,
            "programs": [{
                "name": program.program.name, "calls": [call.name for call in program.program.calls],
                "sent_bytes": program.sent_bytes, "messages": program.messages,
                "results_sha256": [None if result is None else digest(result).hex() for result in program.results],
            } for program in outcome.programs],
            "findings": [vars(finding) for finding in outcome.findings]})),
        rows_of=lambda document: [
            {"name": program["name"], "rank": rank, "sent_bytes": sent, "messages": messages, "result_sha256": sha256}
            for program in document["programs"]
            for rank, (sent, messages, sha256) in enumerate(
                zip(program["sent_bytes"], program["messages"], program["results_sha256"], strict=True))])


def verdict_of(outcome: CollectivesOutcome) -> str:
    """PASSED or FAILED, with the claims that do not hold."""
    count, failed = len(outcome.findings), [finding.claim for finding in outcome.findings if not finding.holds]
    if failed:
        verb = "does" if len(failed) == 1 else "do"
        return f"FAILED: {len(failed)} of {plural(count, 'claim')} {verb} not hold: {'; '.join(failed)}"
    few = ["nothing was claimed", "PASSED: what was claimed holds", "PASSED: both claims hold"]
    return few[count] if count < len(few) else f"PASSED: all {count} claims hold"


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


@dataclass(frozen=True)
class Prepared:
    """A scenario ready to run, and what differs between training and collectives."""

    scenario: Scenario | CollectiveScenario
    setting: str
    """The description of the run, in a few lines."""
    inputs: Sequence[str]
    """The digest of the data, and the checkpoints in words; equal on all ranks."""
    local_world: Callable[[], World]
    """The world that has all ranks in this process."""
    run: Callable[[World, Progress, str | None], Shown | None]
    """The outcome that displays itself, of a run by this command line, in the process that has rank 0."""
    trainings: int = 1
    """The trainings that it makes, one after another: rows, their references, and rows on other ranks."""


def training(scenario: Scenario, *, verbose: bool = False, times: bool = False, **asked: Any) -> Prepared:
    """A scenario of training, prepared as `prepare_run` is `asked`; it is shown `verbose`, and with traced `times`."""
    experiment = prepare_run(scenario, **asked)
    whole, begins = experiment.rows[0].in_one_piece, resumptions(experiment)
    about = f"{whole.words}, {whole.count:,} parameters, {scenario.train.optimizer}"

    def run(world: World, progress: Progress, command: str | None) -> Shown | None:
        outcome = run_on(world, experiment, progress)
        return None if outcome is None else shown_outcome(
            outcome, document(outcome, world_document(world), command), verbose=verbose, times=times)

    return Prepared(scenario, "\n".join([about, *python_run(scenario), *begins]), [experiment.data_sha256, *begins],
                    lambda: local_world(scenario), run,
                    len({row.reference_key for row in experiment.rows if row.check.reference})
                    + sum(1 + len(row.check.same_bits_on) for row in experiment.rows))


def collectives(scenario: CollectiveScenario) -> Prepared:
    """A scenario of collectives, with every call looked up."""
    programs, values = programs_of(scenario), scenario.values
    sends: Any = scenario.world.sends
    lengths = [len(values.given[0])] if values.given else values.lengths
    about = (f"{' + '.join(f'{length:,}' for length in lengths)} {'given' if values.given else 'random'} "
             f"{values.dtype} on each rank")

    def run(world: World, progress: Progress, command: str | None) -> Shown | None:
        outcome = world.run(lambda comm: run_collectives(comm, scenario, programs))[0]
        return None if outcome is None else shown_collectives(outcome, world_document(world))

    return Prepared(scenario, about, [], lambda: LocalWorld(scenario.world.ranks, sends=sends), run)


def run_here(source: Source, changes: Mapping[str, Any]) -> Shown:
    """The scenario of `source` with these changes, run in this process; its last step is traced."""
    if has_company():
        raise LaunchError("zs.run has all ranks in this process, and a launcher has started several: "
                          "use zerosim run under mpirun, or Python without it")
    scenario = load(source, [f"{key}={toml_value(value)}" for key, value in changes.items()])
    if isinstance(scenario, CollectiveScenario):
        prepared = collectives(scenario)
    else:
        steps = scenario.train.steps
        prepared = training(scenario, traced=range(max(steps, 1), steps + 1))
    outcome = prepared.run(prepared.local_world(), Progress(), None)
    assert outcome is not None
    return outcome
