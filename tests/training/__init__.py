"""Small scenarios and data for tests, run in the local world."""

from dataclasses import replace

import numpy as np

from zerosim.scenario import ModelKeys, Parallel, Scenario, Train, WorldKeys
from zerosim.scenario.data import Dataset
from zerosim.scenario.sections import BY_OPTIMIZER
from zerosim.training.experiment import prepare
from zerosim.verdict.judged_run import run_locally


def labelled(features=6, classes=3, samples=40, seed=0):
    """Random samples; the first feature is always 0, so that its weights in the first layer get gradients of 0."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((samples, features)).astype(np.float32)
    x[:, 0] = 0
    y = random.integers(0, classes, samples)
    return Dataset(x, y, x[:8], y[:8], classes)


SECTIONS = ("world", "model", "train", "parallel", "check")
SMALL = Scenario(
    world=WorldKeys(ranks=3),
    model=ModelKeys(hidden=(5, 4), activation="tanh"),
    train=Train(steps=4, micro_batch=2, micro_batches=6, optimizer="adam", learning_rate=0.01),
    parallel=Parallel(stages=("ddp", "zero1", "zero2", "zero3")),
)


def scenario(base=SMALL, **changes):
    """`base` with other keys, each in the section that has it, and other sections."""
    found = {name: changes.pop(name) for name in [*changes] if hasattr(base, name)}
    for section in SECTIONS:
        there = found.get(section, getattr(base, section))
        keys = {key: changes.pop(key) for key in [*changes] if hasattr(there, key)}
        usual = {"weight_decay": BY_OPTIMIZER} if "optimizer" in keys else {}
        found[section] = replace(there, **usual | keys)
    assert not changes
    return replace(base, **found)


def run(dataset=None, base=SMALL, keep_weights=False, traced=range(0), **changes):
    return run_locally(prepare(
        scenario(base, **changes), dataset or labelled(), keep_weights=keep_weights, traced=traced))


def only_row(built, dataset=None):
    """The experiment of a scenario with one row, and its config."""
    experiment = prepare(built, dataset or labelled())
    return experiment, experiment.rows[0]


def claiming(outcome, check):
    """The same outcome, judged by other claims."""
    built = replace(outcome.scenario, check=check)
    return replace(outcome, experiment=replace(outcome.experiment, scenario=built), rows=[
        replace(row, measured=replace(row.measured, config=replace(row.config, check=found.check)))
        for row, found in zip(outcome.rows, built.rows, strict=True)
    ])


def sabotaged(stages, name, *, step):
    """A copy of the table of stages in which `name` does something else."""
    honest = stages[name]
    return replace(honest, step=step)
