"""Schedules of collectives and steps of stages, as the command line and Python ask for them."""

from zerosim.collectives import find
from zerosim.errors import CollectiveError, UsageError
from zerosim.grading.claims import STAGE_TRIALS
from zerosim.grading.recorded import recorded_stage, recorded_step
from zerosim.parts.loading import function_of
from zerosim.proofs.subject import Subject
from zerosim.report.step import RecordedStep
from zerosim.stages import STAGES

MOST_RANKS = 128


def is_stage(subject: str) -> bool:
    """Whether it names a stage of ours, or a learner's in a file."""
    file, _, function = subject.rpartition(":")
    return subject in STAGES or (function in STAGE_TRIALS and file.endswith(".py"))


def stage_step(subject: str, ranks: int) -> RecordedStep:
    """A recorded step of a stage that `is_stage`."""
    if subject in STAGES:
        return recorded_stage(subject, ranks)
    file, _, function = subject.rpartition(":")
    return recorded_step(file, function, function_of(file, function), ranks)


def check_served(subject: Subject, size: int) -> None:
    """Refuse a number of ranks that the algorithm does not serve, naming one that does."""
    if subject.algorithm is not None:
        try:
            find(subject.collective, subject.algorithm.name, size)
        except CollectiveError as error:
            raise UsageError(str(error)) from error


def check_root(subject: Subject, size: int, root: int | None) -> None:
    if root is None:
        return
    if not subject.kind.rooted:
        raise UsageError(f"leave out root: {subject.name} has none")
    if not 0 <= root < size:
        raise UsageError(f"root {root} is none of the {size} ranks: give one from 0 to {size - 1}")
