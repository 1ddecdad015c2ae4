"""A user's stage tried before a run, as an exercise is: on few samples, beside the shipped one that shards the same."""

from zerosim.grading.stages import StageTrial
from zerosim.grading.tiny import EVEN, ODD
from zerosim.parts import Named
from zerosim.stages.own import like

SIZES = (EVEN[2], EVEN[3], ODD[0])
DECLARED = "or declare it: @stage(…, wire=\"bf16\") lets gradients travel, and be added, in fewer bits"


def fault_of_stage(name: Named) -> str | None:
    """Where training with a stage first differs from what it declares, and why; None where it does not."""
    return fault_in(StageTrial(like(name.part), name.part.step), name.part.wire)


def fault_in(trial: StageTrial, wire: str) -> str | None:
    """Where the trial of a stage that declares this wire first differs, and why; None where it does not."""
    try:
        found = trial.first_difference(SIZES)
        narrows = not wire and found and "hands reduce_scatter" in found and "an array of" in found
        return f"{found}\n{DECLARED}" if narrows else found
    except NotImplementedError as error:
        return f"it is not written yet: {error}" if str(error) else "it is not written yet"
