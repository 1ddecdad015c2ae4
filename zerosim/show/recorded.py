"""Schedules of collectives and recorded steps of stages, for the command line and Python.

A step of a stage, of the library, of a learner or of a user, is recorded in a short training on digits.
"""

import inspect
import os
from dataclasses import replace
from typing import Any

from zerosim.collectives import find
from zerosim.core.errors import CollectiveError, ScenarioError, UsageError, ZerosimError
from zerosim.core.parts import Loader, Named, code_of, is_python
from zerosim.core.words import plural
from zerosim.proofs.ended import endless_loop, raised
from zerosim.proofs.parts import checked
from zerosim.proofs.subject import Subject
from zerosim.scenario import ModelKeys, Parallel, Scenario, Train, WorldKeys
from zerosim.scenario.data import load_dataset
from zerosim.scenario.ignored import ignored_by_stage
from zerosim.show.schedule import Schedule, scheduled
from zerosim.show.step import RecordedStep, events_of
from zerosim.show.table import divergence
from zerosim.stages import STAGES, Stage
from zerosim.stages.users_stage import as_stage
from zerosim.training.experiment import prepare
from zerosim.verdict.judged_run import run_locally
from zerosim.worlds.local import StillRunning

MOST_RANKS = 128
LIMIT_SECONDS = 60.0
STEPS = 2
"""The last step is recorded, when all states exist."""


def recorded_stage(name: str, ranks: int, **variant: Any) -> RecordedStep:
    """A step of a shipped stage; `variant` has keys of [parallel], which its title names.

    Raises `UsageError` for keys that [parallel] refuses.

    >>> [event.words for event in recorded_stage("zero1", 2).events][:2]
    ['forward layers.0', 'forward layers.1']
    """
    title = ", ".join([STAGES[name].title, *(f"{key} = {value}" for key, value in variant.items())])
    if why := ignored_by_stage(name, variant):
        raise UsageError("; ".join(f"leave out {key}: of {name}, {words}" for key, words in why.items()))
    try:
        return recorded_row(title, Parallel((name,), **variant), ranks)
    except ScenarioError as error:
        raise UsageError(error.args[0].partition(": ")[2] or str(error)) from None


def recorded_part(name: Named, ranks: int) -> RecordedStep:
    """A step of a user's stage. Raises `UsageError` for its exceptions, with the line."""
    file = os.path.abspath(name.part.step.__code__.co_filename)
    try:
        found = recorded_row(str(name), Parallel((name,)), ranks)
        causes = checked(str(name), name.part).complaints[:1] if found.fault else []
        return replace(found, fault="\n".join([found.fault, *causes])) if found.fault else found
    except NotImplementedError as error:
        raise UsageError(f"{name} is not written yet") from error
    except StillRunning as error:
        why = endless_loop(error, file)
        raise UsageError(f"{name}: {raised(error, file)}{f': {why}' if why else ''}") from error
    except ZerosimError:
        raise
    except Exception as error:
        raise UsageError(f"{name}: {raised(error, file)}") from error


def recorded_row(title: str, parallel: Parallel, ranks: int) -> RecordedStep:
    """The last step of a short training of a small perceptron."""
    scenario = Scenario(
        world=WorldKeys(ranks), model=ModelKeys(hidden=(64, 32)),
        train=Train(steps=STEPS, micro_batch=8, micro_batches=ranks), parallel=parallel)
    experiment = prepare(scenario, load_dataset(scenario), traced=range(STEPS, STEPS + 1))
    outcome = run_locally(experiment, limit_seconds=LIMIT_SECONDS).trained[0]
    assert outcome.measured.trace is not None
    about = f"a step on {plural(ranks, 'rank')}, {experiment.rows[0].model.words}, {scenario.train.optimizer}"
    found = outcome.first_divergence
    wrong = divergence(found) if found else outcome.measured.disagreement
    return RecordedStep(title, about, events_of(outcome.measured.trace), wrong)


def is_stage(subject: str) -> bool:
    """Whether a name stands for a stage of ours or a user's."""
    return subject in STAGES or (is_python(subject) and is_step(Loader().load(subject).value))


def is_step(found: Any) -> bool:
    """Whether an object is a stage, or the step of one.

    >>> def mine(replica, batch): ...
    >>> is_step(mine), is_step(is_step)
    (True, False)
    """
    return isinstance(found, Stage) or (
        inspect.isfunction(found) and list(inspect.signature(found).parameters) == ["replica", "batch"])


def stage_step(subject: str, ranks: int, **variant: int) -> RecordedStep:
    """A recorded step of a named stage (see `is_stage`); for ours also with keys of [parallel]."""
    if subject in STAGES:
        return recorded_stage(subject, ranks, **variant)
    if variant:
        raise UsageError(f"remove {', '.join(variant)}: they are for {', '.join(STAGES)}")
    code = Loader().load(subject)
    return recorded_part(Named(subject, as_stage(subject, code.value), code.sha256), ranks)


def step_of(found: Any, ranks: int) -> RecordedStep:
    """A recorded step of a stage given as a Python object."""
    name, code = code_of(found)
    return recorded_part(Named(name, as_stage(name, found), code.sha256), ranks)


def schedule_of(subject: Subject, size: int, root: int | None) -> Schedule:
    """The schedule of a collective on so many ranks; raises `UsageError` for ranks or a root that it does not support.
    """
    if subject.declared is not None and not subject.serves(size):
        raise UsageError(f"{subject.name} serves {subject.declared.limit}, not {size}")
    if subject.algorithm is not None:
        try:
            find(subject.collective, subject.algorithm.name, size)
        except CollectiveError as error:
            raise UsageError(str(error)) from error
    if root is not None and not subject.kind.rooted:
        raise UsageError(f"remove root: {subject.name} has none")
    if not 0 <= (root or 0) < size:
        raise UsageError(f"root {root} is none of the {size} ranks: give one from 0 to {size - 1}")
    return scheduled(subject, size, root or 0)
