"""What `zerosim show` and `zs.show` draw: a recorded run of a collective, or a recorded step of a stage.

A step of a stage, of the library, of a learner or of a user, is recorded in a short training on digits.
"""

import inspect
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from zerosim.collectives import Algorithm
from zerosim.core.errors import ScenarioError, UsageError, ZerosimError
from zerosim.core.parts import Loader, Named, is_python, named
from zerosim.core.words import joined, plural
from zerosim.plan.reading import numbers_of_ranks
from zerosim.proofs.ended import endless_loop, raised
from zerosim.proofs.parts import checked
from zerosim.proofs.schedule import scheduled
from zerosim.proofs.subject import subject_on_hosts
from zerosim.scenario import ModelKeys, Parallel, Scenario, Train, WorldKeys
from zerosim.scenario.data import load_dataset
from zerosim.scenario.ignored import ignored_by_stage
from zerosim.show.drawing import shown_schedule
from zerosim.show.shown import Shown
from zerosim.show.step import RecordedStep, events_of, shown_step, shown_steps
from zerosim.show.transposes import on_tape, shown_transpose
from zerosim.stages import STAGES, Stage
from zerosim.stages.users_stage import as_stage
from zerosim.training.experiment import prepare
from zerosim.verdict.judged_run import run_locally
from zerosim.worlds.local import StillRunning

MOST_SHOWN_RANKS = 128
LIMIT_SECONDS = 60.0
STEPS = 2
"""The last step is recorded, when all states exist."""


def shown(
    subject: str | Algorithm | Stage | Callable[..., Any], ranks: int, *, root: int | None = None,
    claims: str | None = None, ranks_per_host: int | None = None, only: int | None = None, **groups: int | None,
) -> Shown:
    """The schedule of a collective, or `only` one round of it, both passes of one on the tape, or a step of a stage; of
    several stages, with commas between their names, all steps.

    `groups` has keys of [parallel] for a stage. Raises `UsageError` for what the subject does not have.
    """
    def refuse(given: set[str], what: str) -> None:
        if given:
            raise UsageError(f"remove {joined(sorted(given)).replace('_', '-')}: {what} has none")

    [ranks] = numbers_of_ranks([ranks], MOST_SHOWN_RANKS)
    given = {name for name, value in (groups | {
        "root": root, "as": claims, "ranks_per_host": ranks_per_host, "round": only}).items() if value is not None}
    loader = Loader()
    if isinstance(subject, str) and "," in subject:
        refuse(given - {*groups}, "a stage")
        return shown_steps([recorded_stage(known_stage(name, loader), ranks, **{key: groups[key] for key in given})
                            for name in subject.split(",")])
    if (stage := stage_in(subject, loader)) is not None:
        refuse(given - {*groups}, "a stage")
        return shown_step(recorded_stage(stage, ranks, **{key: groups[key] for key in given}))
    if (operation := on_tape(subject, loader)) is not None:
        refuse(given, "a collective on the tape")
        return shown_transpose(operation, ranks)
    assert not isinstance(subject, Stage)
    refuse(given & {*groups}, "a collective")
    collective = subject_on_hosts(subject, claims, ranks_per_host, loader, list(STAGES))
    row = collective.algorithm or collective.declared
    if row is not None and not row.serves(ranks):
        raise UsageError(f"{collective.name} serves {row.limit}, not {ranks}")
    refuse(given & {"root"} if not collective.kind.rooted else set(), collective.name)
    if not 0 <= (root or 0) < ranks:
        raise UsageError(f"root {root} is none of the {ranks} ranks: give one from 0 to {ranks - 1}")
    schedule = scheduled(collective, ranks, root or 0)
    if only not in (None, *range(len(schedule.states))):
        raise UsageError(f"round {only}: there are rounds 0 to {len(schedule.states) - 1}")
    return shown_schedule(schedule, only)


def known_stage(subject: str, loader: Loader) -> str | Named:
    """A stage by its name; `UsageError` for anything else."""
    stage = stage_in(subject, loader)
    if stage is None:
        raise UsageError(f"{subject!r} is no stage, and only stages stand beside each other: {joined([*STAGES])}")
    return stage


def stage_in(subject: Any, loader: Loader) -> str | Named | None:
    """A shipped stage by its name, or a user's by its name or as an object; None for anything else.

    >>> stage_in("zero3", Loader()), stage_in("ring.all_reduce", Loader()), stage_in(stage_in, Loader())
    ('zero3', None, None)
    """
    if isinstance(subject, str) and subject in STAGES:
        return subject
    if isinstance(subject, str) and not is_python(subject):
        return None
    given = loader.load(subject) if isinstance(subject, str) else named(subject)
    part = given.part
    is_step = inspect.isfunction(part) and list(inspect.signature(part).parameters) == ["replica", "batch"]
    return replace(given, part=as_stage(given.source, part)) if is_step or isinstance(part, Stage) else None


def recorded_stage(stage: str | Named, ranks: int, **groups: Any) -> RecordedStep:
    """The last step of a short training of a small perceptron by a stage, with keys of [parallel].

    Raises `UsageError` for keys that the stage or [parallel] refuses, and for exceptions in a user's stage, with the
    line.

    >>> [event.words for event in recorded_stage("zero1", 2).events][:2]
    ['forward layers.0', 'forward layers.1']
    """
    if not isinstance(stage, Named) and (why := ignored_by_stage(stage, groups)):
        raise UsageError("; ".join(f"leave out {key}: of {stage}, {words}" for key, words in why.items()))
    try:
        scenario = Scenario(
            world=WorldKeys(ranks), model=ModelKeys(hidden=(64, 32)),
            train=Train(steps=STEPS, micro_batch=8, micro_batches=ranks), parallel=Parallel((stage,), **groups))
        experiment = prepare(scenario, load_dataset(scenario), traced=range(STEPS, STEPS + 1))
        outcome = run_locally(experiment, limit_seconds=LIMIT_SECONDS).trained[0]
    except ScenarioError as error:
        raise UsageError(error.args[0].partition(": ")[2] or str(error)) from None
    except NotImplementedError as error:
        raise UsageError(f"{stage} is not written yet") from error
    except Exception as error:
        if not isinstance(stage, Named) or (isinstance(error, ZerosimError) and not isinstance(error, StillRunning)):
            raise
        file = os.path.abspath(stage.part.step.__code__.co_filename)
        why_not = endless_loop(error, file)
        raise UsageError(f"{stage}: {raised(error, file)}{f': {why_not}' if why_not else ''}") from error
    assert outcome.measured.trace is not None
    about = f"a step on {plural(ranks, 'rank')}, {experiment.rows[0].model.words}, {scenario.train.optimizer}"
    fault = outcome.first_divergence.words if outcome.first_divergence else outcome.measured.disagreement
    if fault and isinstance(stage, Named):
        fault = "\n".join([fault, *checked(str(stage), stage.part).complaints[:1]])
    titles = [str(stage) if isinstance(stage, Named) else STAGES[stage].title,
              *(f"{key} = {value}" for key, value in groups.items())]
    return RecordedStep(", ".join(titles), about, events_of(outcome.measured.trace), fault, experiment.rows[0])
