"""Objects for notebooks and the Python prompt: they display themselves, offline, and print well.

A result knows no terminal and no picture. The HTML of several cells is one page, so a cell has no styles, scripts or
names of its own. SVG inside it would share its `clip0` and its `text{…}` with all others: pictures are images that
contain their data, and whole pages are in frames.

A run has its verdict, its figures as plain rows, its pictures and its page.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from rich.console import Console

from zerosim.collectives import Algorithm
from zerosim.core.errors import LaunchError, UsageError
from zerosim.core.parts import Loader
from zerosim.core.words import joined
from zerosim.proofs.programs import CollectivesOutcome, collectives_world, programs_of, run_collectives
from zerosim.proofs.subject import asked_subject
from zerosim.scenario import CollectiveScenario, Scenario, Source, load
from zerosim.show.collectives import collectives_document, show_collectives
from zerosim.show.columns import FIGURES, MEASURED
from zerosim.show.document import document, world_document
from zerosim.show.film import shown_schedule, shown_step
from zerosim.show.page.page import excerpt, page
from zerosim.show.page.pictures import Spec, files, svg
from zerosim.show.recorded import MOST_RANKS, is_stage, is_step, schedule_of, stage_step, step_of
from zerosim.show.run_document import KIND_NAMES, RunDocument
from zerosim.show.shown import Page, Picture, Shown, printed
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
    """The outcome, read from its document."""

    def losses(self) -> list[dict[str, Any]]:
        """A plain dict for each step of each row: `name`, `step`, `loss`; the first step is 1."""
        return [
            {"name": row.found["name"], "step": step, "loss": float(loss)}
            for row in self.run.rows for step, loss in enumerate(row.found["losses"], 1)
        ]

    def spans(self) -> list[dict[str, Any]]:
        """A plain dict for each activity of a rank in the traced steps of each row."""
        return [{"name": name, "step": step["step"], **span} for name, step in self._traced for span in step["spans"]]

    def memory(self) -> list[dict[str, Any]]:
        """A plain dict for each change of a rank's memory in the traced steps of each row."""
        return [
            {"name": name, "step": step["step"], "rank": step["rank"], "ns": at["ns"],
             **{kind: at.get(kind, 0) for kind in KIND_NAMES}}
            for name, step in self._traced for at in step["memory"]
        ]

    @property
    def _traced(self) -> list[tuple[str, dict[str, Any]]]:
        """Every traced step of every rank, with the name of its row."""
        return [(row.found["name"], step) for row in self.run.rows
                for step in (row.found.get("trace") or {"steps": []})["steps"]]

    @cached_property
    def _specs(self) -> dict[str, Spec]:
        return files(self.run.rows)

    def picture(self, name: str = "kept", row: str = "") -> Picture:
        """One picture of the page: `kept`, `sent`, `losses`; for a row `step`, `memory` or `partners`.

        Raises `UsageError` for an unknown picture, and if vl-convert is not installed.
        """
        names = [each.name for each in self.run.rows]
        if row and row not in names:
            raise UsageError(f"there is no row {row!r}; there are {joined(names)}")
        key = f"{name}-{names.index(row) + 1}" if row else name
        if key not in self._specs:
            whole = [each for each in self._specs if "-" not in each]
            of_rows = dict.fromkeys(each.partition("-")[0] for each in self._specs if "-" in each)
            raise UsageError(f"there is no picture {name!r}{' of a row' * bool(row)}; there are "
                             f"{joined(whole)}, and of a row, such as row={names[0]!r}, {joined(list(of_rows))}")
        return Picture(svg(self._specs[key]), f"{name}{f' of {row}' * bool(row)} in {self.run.title or 'a run'}")


def shown_outcome(outcome: Outcome, document: dict[str, Any]) -> ShownOutcome:
    """The outcome of a run that displays itself: `print` shows the tables of `zerosim run`, a notebook pictures too."""
    run = RunDocument(document)
    return ShownOutcome(
        outcome, outcome.passed, str(document["verdict"]), f"<outcome of {run.title!r}: {document['verdict']}>",
        show=lambda console: show_run(console, run.untraced), make_document=lambda: document,
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
    try:
        return f"{key}={json.dumps(value, ensure_ascii=False, default=of_numpy)}"
    except (TypeError, ValueError) as error:
        raise UsageError(f"set: {key!r} has type {type(value).__name__}; give a number, a string, a boolean or a list "
                         f"of these") from error


def of_numpy(value: Any) -> Any:
    """A NumPy number or array as Python objects; `TypeError` for anything else."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not a NumPy type")


def compared(run: RunDocument) -> list[dict[str, Any]]:
    """A row for each line of the comparison."""
    return [{
        **{key: found[key] for key in ("name", "stage", "equal", "compared_with")},
        "final_loss": float(found["losses"][-1]) if found["losses"] else None,
        "test": None if found["test"] is None else float(found["test"]),
        **{figure.key: figure.value(row) for figure in FIGURES},
        **{key: found.get(key) for key in MEASURED},
        "hidden": row.hidden,
        "train_seconds": found["seconds"]["train"],
        "weights_sha256": found["weights_sha256"],
    } for row in run.rows for found in [row.found]]


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
