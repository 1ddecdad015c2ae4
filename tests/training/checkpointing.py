"""Runs that save and go on, in the local world."""

from dataclasses import replace

from zerosim.scenario.sections import Checkpoint
from zerosim.training.experiment import prepare
from zerosim.training.keeping import with_checkpoints
from zerosim.training.program import Progress
from zerosim.verdict.judged_run import run_locally


def go(built, dataset, *, save=None, resume=None, every=1, keep=2, steps=None, progress=None):
    """Run a scenario, up to another step if one is given; save to a folder, and go on from one, and tell `progress`."""
    train = built.train if steps is None else replace(built.train, steps=steps)
    said = Checkpoint(str(save), every, keep) if save is not None else Checkpoint()
    built = replace(built, checkpoint=said, train=train)
    experiment = with_checkpoints(prepare(built, dataset), None if resume is None else str(resume))
    return run_locally(experiment, progress or Progress())


def bits(outcome):
    """All bytes that a run ends with, row by row."""
    return [
        (b"".join(loss.tobytes() for loss in row.losses), row.weights_sha256, row.optimizer_sha256, row.updates)
        for row in (trained.measured for trained in outcome.trained)
    ]
