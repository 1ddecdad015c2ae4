"""Schedules of collectives and steps of stages, for the command line and Python."""

import inspect
from typing import Any

from zerosim.collectives import find
from zerosim.errors import CollectiveError, UsageError
from zerosim.parts import Loader, Named, code_of, is_python
from zerosim.parts.loading import function_of
from zerosim.show.schedule import Schedule, scheduled
from zerosim.show.step import RecordedStep
from zerosim.stages import STAGES, Stage
from zerosim.stages.own import as_stage
from zerosim.teach.grading.claims import STAGE_TRIALS
from zerosim.teach.grading.recorded import recorded_part, recorded_stage, recorded_step
from zerosim.teach.proofs.subject import Subject

MOST_RANKS = 128


def is_stage(subject: str) -> bool:
    """Whether a name stands for a stage of ours, a learner's in a file, or a user's."""
    return subject in STAGES or is_learners(subject) or (is_python(subject) and is_step(Loader().load(subject).value))


def is_learners(subject: str) -> bool:
    """Whether a name stands for the step of an exercise."""
    file, _, function = subject.rpartition(":")
    return function in STAGE_TRIALS and file.endswith(".py")


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
    file, _, function = subject.rpartition(":")
    if not is_learners(subject):
        code = Loader().load(subject)
        return recorded_part(Named(subject, as_stage(subject, code.value), code.sha256), ranks)
    return recorded_step(file, function, function_of(file, function), ranks)


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
