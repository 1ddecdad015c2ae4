"""A trial of a user's stage before a run: on few samples, against the shipped stage with the same sharding."""

from functools import partial

from zerosim.grading.stages import StageTrial
from zerosim.grading.tiny import EVEN, ODD
from zerosim.parts import Named
from zerosim.stages import Stage
from zerosim.stages.own import like

SIZES = (EVEN[2], EVEN[3], ODD[0])
WAYS = ("layered", "boundary")
"""The accumulations with which a stage is tried: all micro-batches at once, and one after another."""
DECLARED = "or declare it: @stage(…, wire=\"bf16\") sends and adds gradients in fewer bits"


def trials_of(stage: Stage) -> list[StageTrial]:
    """A trial against the shipped stage with the same sharding, for each of `WAYS`."""
    return [StageTrial(like(stage), stage.step, {"accumulation": way}) for way in WAYS]


def fault_of_stage(name: Named) -> str | None:
    """The first difference between training with a stage and what it declares, and the cause; None if there is none."""
    asked = [ask for trial in trials_of(name.part) for ask in (
        partial(fault_in, trial, name.part.wire), trial.sent_otherwise, trial.kept_otherwise, trial.held_too_much)]
    return next((found for ask in asked if (found := ask())), None)


def fault_in(trial: StageTrial, wire: str) -> str | None:
    """The first difference in bits and its cause, for a stage that declares this wire format; None if there is none."""
    try:
        found = trial.first_difference(SIZES)
        narrows = not wire and found and "hands reduce_scatter" in found and "an array of" in found
        return f"{found}\n{DECLARED}" if narrows else found
    except NotImplementedError as error:
        return f"it is not written yet: {error}" if str(error) else "it is not written yet"
