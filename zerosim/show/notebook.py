"""Objects for notebooks and the Python prompt: they display themselves, offline, and print well.

A result knows no terminal and no picture. The HTML of several cells is one page, so a cell has no styles, scripts or
names of its own. SVG inside it would share its `clip0` and its `text{…}` with all others: pictures are images that
contain their data, and whole pages are in frames.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from rich.console import Console

from zerosim.collectives import Algorithm
from zerosim.core.errors import LaunchError, UsageError
from zerosim.core.parts import Loader
from zerosim.core.words import joined
from zerosim.observe.memory import MEMORY_KINDS
from zerosim.proofs.programs import CollectivesOutcome, collectives_world, programs_of, run_collectives
from zerosim.proofs.subject import asked_subject
from zerosim.scenario import CollectiveScenario, Scenario, Source, load
from zerosim.show.collectives import collectives_document, show_collectives
from zerosim.show.columns import compared
from zerosim.show.document import RunDocument, StepDocument, document, world_document, written
from zerosim.show.drawing import shown_schedule
from zerosim.show.page import excerpt, page
from zerosim.show.pictures import files, svg
from zerosim.show.recorded import MOST_RANKS, is_stage, is_step, schedule_of, stage_step, step_of
from zerosim.show.shown import Page, Picture, Shown, printed
from zerosim.show.step import shown_step
from zerosim.show.table import show_run
from zerosim.show.transposes import on_tape, shown_transpose
from zerosim.stages import Stage
from zerosim.training.program import Silent
from zerosim.verdict.judged_run import local_world, prepare_run, run_on
from zerosim.verdict.outcome import Outcome
from zerosim.worlds.launcher import has_company
from zerosim.worlds.world import World


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
        return [{"name": name, "step": step.step, **asdict(span)} for name, step in self._traced for span in step.spans]

    def memory(self) -> list[dict[str, Any]]:
        """A plain dict for each change of a rank's memory in the traced steps of each row."""
        return [{"name": name, "step": step.step, "rank": step.rank, "ns": at["ns"],
                 **{kind: at.get(kind, 0) for kind in MEMORY_KINDS}}
                for name, step in self._traced for at in step.memory]

    @property
    def _traced(self) -> list[tuple[str, StepDocument]]:
        """Every traced step of every rank, with the name of its row."""
        return [(row.name, step) for row in self.run.rows if row.trace for step in row.trace.steps]

    def picture(self, name: str = "kept", row: str = "") -> Picture:
        """One picture of the page: `kept`, `sent`, `losses`; for a row `step`, `memory` or `partners`.

        Raises `UsageError` for an unknown picture, and if vl-convert is not installed.
        """
        names, specs = [each.name for each in self.run.rows], files(self.run.rows)
        if row and row not in names:
            raise UsageError(f"there is no row {row!r}; there are {joined(names)}")
        key = f"{name}-{names.index(row) + 1}" if row else name
        if key not in specs:
            of_a_row = f", and of a row, such as row={names[0]!r}, step, memory and partners" if names else ""
            raise UsageError(f"there is no picture {name!r}{' of a row' * bool(row)}; there are "
                             f"{joined([each for each in specs if '-' not in each])}{of_a_row}")
        return Picture(svg(specs[key]), f"{name}{f' of {row}' * bool(row)} in {self.run.title or 'a run'}")


def shown_outcome(outcome: Outcome, run: RunDocument) -> ShownOutcome:
    """The outcome of a run that displays itself: `print` shows the tables of `zerosim run`, a notebook pictures too."""
    return ShownOutcome(
        outcome, outcome.passed, run.verdict, f"<outcome of {run.title!r}: {run.verdict}>",
        show=lambda console: show_run(console, run, times=False), make_document=lambda: written(run),
        rows_of=lambda _: compared(run), excerpt=lambda: excerpt(run), width=80,
        make_page=lambda: Page(page([run]), f"all of {run.title or 'a run'}"), run=run)


def shown_collectives(outcome: CollectivesOutcome, document: dict[str, Any]) -> Shown:
    """The outcome of a scenario of collectives that displays itself as `zerosim run` prints it.

    A row, one for each rank of each program, has `name`, `rank`, `sent_bytes`, `messages`, `result_sha256`.
    """
    def show(console: Console) -> None:
        show_collectives(console, outcome)

    verdict = printed(show, 80).splitlines()[-1]
    return Shown(
        outcome, outcome.passed, verdict, f"<outcome of {outcome.scenario.title!r}: {verdict}>",
        show=show, make_document=lambda: document, width=80,
        rows_of=lambda document: [
            {"name": each["name"], "rank": rank, "sent_bytes": sent, "messages": messages, "result_sha256": digest}
            for each in document["programs"]
            for rank, (sent, messages, digest) in enumerate(
                zip(each["sent_bytes"], each["messages"], each["results_sha256"], strict=True))
        ])


def run_here(path: Source, changes: Mapping[str, Any]) -> ShownOutcome | Shown:
    """The scenario at `path` with these changes, run in this process; its last step is traced."""
    if has_company():
        raise LaunchError("zs.run has all ranks in this process, and a launcher has started several: "
                          "use zerosim run under mpirun, or Python without it")
    if not isinstance(path, str | os.PathLike | Mapping | Scenario):
        raise UsageError(f"found {path!r}; give the path of a scenario, a name that zerosim scenarios lists, a dict, "
                         "or a zs.Scenario")
    if not isinstance(changes, Mapping):
        raise UsageError(f"set: found {changes!r}; give a dict, such as {{'train.steps': 5}}")
    scenario = load(path, [override(key, value) for key, value in changes.items()])
    world: World
    if isinstance(scenario, CollectiveScenario):
        programs, world = programs_of(scenario), collectives_world(scenario)
        seen = world.run(lambda comm: run_collectives(comm, scenario, programs))[0]
        assert seen is not None
        return shown_collectives(seen, collectives_document(seen, world_document(world)))
    steps = scenario.train.steps
    experiment = prepare_run(scenario, traced=range(max(steps, 1), steps + 1))
    world = local_world(scenario)
    outcome = run_on(world, experiment, Silent())
    assert outcome is not None
    return shown_outcome(outcome, document(outcome, world_document(world)))


def override(key: str, value: Any) -> str:
    """A change as on the command line: JSON's form of numbers, strings, booleans and lists is TOML's.

    >>> override("train.steps", np.int64(5)), override("parallel.overlap", True)
    ('train.steps=5', 'parallel.overlap=true')
    >>> override("parallel.stages", ("ddp", "zero3"))
    'parallel.stages=["ddp", "zero3"]'
    """
    def of_numpy(value: Any) -> Any:
        if isinstance(value, np.generic | np.ndarray):
            return value.tolist()
        raise TypeError(f"{type(value).__name__} is not a NumPy type")

    try:
        return f"{key}={json.dumps(value, ensure_ascii=False, default=of_numpy)}"
    except (TypeError, ValueError) as error:
        raise UsageError(f"set: {key!r} has type {type(value).__name__}; give a number, a string, a boolean or a list "
                         f"of these") from error


def shown(
    collective: str | Algorithm | Stage | Callable[..., Any], ranks: int, root: int | None, claims: str | None
) -> Shown:
    """The schedule of a named algorithm, or of a function, or a step of a stage, on `ranks` ranks."""
    if type(ranks) is not int or not 1 <= ranks <= MOST_RANKS:
        raise UsageError(f"ranks={ranks!r}: a schedule is drawn for 1 to {MOST_RANKS} ranks")
    if isinstance(collective, str) and is_stage(collective):
        if root is not None or claims is not None:
            raise UsageError("remove root and claims: they are for a collective, not for a stage")
        return shown_step(stage_step(collective, ranks))
    if is_step(collective):
        return shown_step(step_of(collective, ranks))
    if (operation := on_tape(collective, Loader())) is not None:
        return shown_transpose(operation, ranks)
    assert not isinstance(collective, Stage)
    return shown_schedule(schedule_of(asked_subject(collective, claims), ranks, root))
