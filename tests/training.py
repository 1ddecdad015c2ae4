"""Small scenarios and data for tests, run in the local world."""

from dataclasses import replace

import numpy as np

from zerosim.recipe import prepare
from zerosim.run import Silent, run_locally
from zerosim.scenario import Check, Model, Parallel, Scenario, Train, World
from zerosim.scenario.dataset import Dataset


def labelled(features=6, classes=3, samples=40, seed=0):
    """Random samples; the first feature is always 0, so that its weights in the first layer get gradients of 0."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((samples, features)).astype(np.float32)
    x[:, 0] = 0
    y = random.integers(0, classes, samples)
    return Dataset(x, y, x[:8], y[:8], classes)


def scenario(**changes):
    base = {
        "ranks": 3, "hidden": (5, 4), "activation": "tanh", "steps": 4, "micro_batch": 2,
        "micro_batches": 6, "optimizer": "adam", "stages": ("ddp", "zero1", "zero2", "zero3"),
        "reference": True, "seed": 0, "learning_rate": 0.01, "order": "ring",
    } | changes
    return Scenario(
        world=World(base["ranks"]),
        model=Model(hidden=base["hidden"], activation=base["activation"]),
        train=Train(
            steps=base["steps"], micro_batch=base["micro_batch"], micro_batches=base["micro_batches"],
            optimizer=base["optimizer"], learning_rate=base["learning_rate"], seed=base["seed"],
        ),
        parallel=Parallel(stages=base["stages"], order=base["order"]),
        check=Check(reference=base["reference"]),
    )


def run(dataset=None, keep_weights=False, **changes):
    recipe = prepare(scenario(**changes), dataset or labelled())
    return run_locally(recipe, Silent(), keep_weights=keep_weights)


def sabotaged(stages, name, *, step=None, keep=None):
    """A copy of the table of stages in which `name` does something else."""
    honest = stages[name]
    return replace(honest, step=step or honest.step, keep=keep or honest.keep)
