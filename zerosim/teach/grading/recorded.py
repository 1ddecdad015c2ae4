"""A recorded step of a stage, of the library or of a learner, in a short training on digits."""

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from zerosim.data import load_dataset
from zerosim.errors import ScenarioError, UsageError, ZerosimError
from zerosim.parts import Named
from zerosim.scenario import ModelKeys, Parallel, Scenario, Train, WorldKeys
from zerosim.scenario.ignored import ignored_by_stage
from zerosim.show.step import RecordedStep, events_of
from zerosim.show.table import divergence
from zerosim.stages import STAGES
from zerosim.teach.grading.claims import STAGE_TRIALS
from zerosim.teach.grading.stages import StageTrial, fault_of_stage
from zerosim.teach.grading.trained import in_place_of
from zerosim.teach.proofs.hints import raised, why_it_never_ends
from zerosim.training.experiment import prepare
from zerosim.training.program import Silent
from zerosim.verdict.judged_run import run_locally
from zerosim.words import plural
from zerosim.worlds.local import StillRunning

LIMIT_SECONDS = 60.0
STEPS = 2
"""The last step is recorded, when all states exist."""


def recorded_stage(name: str, ranks: int, **variant: int) -> RecordedStep:
    """A step of a shipped stage; `variant` has keys of [parallel], which its title names.

    Raises `UsageError` for keys that [parallel] refuses.

    >>> [event.words for event in recorded_stage("zero1", 2).events][:2]
    ['forward layers.0', 'forward layers.1']
    """
    title = ", ".join([STAGES[name].title, *(f"{key} = {value}" for key, value in variant.items())])
    if why := ignored_by_stage(name, variant):
        raise UsageError("; ".join(f"leave out {key}: of {name}, {words}" for key, words in why.items()))
    try:
        return recorded(title, StageTrial(name, STAGES[name].step, variant), ranks)
    except ScenarioError as error:
        raise UsageError(error.args[0].partition(": ")[2] or str(error)) from None


def recorded_step(file: str, name: str, function: Callable[..., Any], ranks: int) -> RecordedStep:
    """A step of a learner's stage. Raises `UsageError` for its exceptions, with the line."""
    try:
        found = recorded(f"{file}:{name}", STAGE_TRIALS[name](function), ranks)
        return replace(found, fault=f"{found.fault}; zerosim grade {file} says why") if found.fault else found
    except StillRunning as error:
        why = why_it_never_ends(error.places, os.path.abspath(file))
        raise UsageError(f"{file}: {raised(error, os.path.abspath(file))}{f': {why}' if why else ''}") from error
    except ZerosimError:
        raise
    except NotImplementedError as error:
        raise UsageError(f"{file}: {name} is not written yet") from error
    except Exception as error:
        raise UsageError(f"{file}: {raised(error, os.path.abspath(file))}; zerosim grade {file} says why") from error


def recorded_part(name: Named, ranks: int) -> RecordedStep:
    """A step of a user's stage. Raises `UsageError` for its exceptions, with the line."""
    file = os.path.abspath(name.part.step.__code__.co_filename)
    try:
        found = recorded_row(str(name), Parallel((name,)), ranks)
        why = fault_of_stage(name) if found.fault else None
        return replace(found, fault=f"{found.fault}\n{why}") if why else found
    except ZerosimError:
        raise
    except Exception as error:
        raise UsageError(f"{name}: {raised(error, file)}") from error


def recorded(title: str, trial: StageTrial, ranks: int) -> RecordedStep:
    """A step of a trial, which replaces the step of its stage."""
    with in_place_of(trial.stage, trial.given):
        return recorded_row(title, Parallel((trial.stage,), **trial.variant), ranks)


def recorded_row(title: str, parallel: Parallel, ranks: int) -> RecordedStep:
    """The last step of a short training of a small perceptron."""
    scenario = Scenario(
        world=WorldKeys(ranks), model=ModelKeys(hidden=(64, 32)),
        train=Train(steps=STEPS, micro_batch=8, micro_batches=ranks), parallel=parallel)
    experiment = prepare(scenario, load_dataset(scenario))
    outcome = run_locally(
        experiment, Silent(), traced=range(STEPS, STEPS + 1), limit_seconds=LIMIT_SECONDS).trained[0]
    assert outcome.measured.trace is not None
    about = f"a step on {plural(ranks, 'rank')}, {experiment.rows[0].model.words}, {scenario.train.optimizer}"
    found = outcome.first_divergence
    wrong = divergence(found) if found else outcome.measured.disagreement
    return RecordedStep(title, about, events_of(outcome.measured.trace), wrong)
