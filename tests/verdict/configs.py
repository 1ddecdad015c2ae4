"""The config of a row for the formulas."""

from dataclasses import replace

from zerosim.models.units import Task
from zerosim.scenario import Check, ModelKeys, Parallel, Scenario, Train, WorldKeys
from zerosim.training.config import configured

BASE = Scenario(
    world=WorldKeys(3), model=ModelKeys(hidden=(5, 4), activation="relu"),
    train=Train(steps=4, micro_batch=2, micro_batches=6), parallel=Parallel(accumulation="layered"), check=Check(),
)


def config(stage, *keys, inputs=6, outputs=3):
    """The row that trains by `stage`, with these keys, each of the section that has it."""
    said, built = {"stages": (stage,)}, {}
    for each in keys:
        said |= each
    for section in ("world", "model", "train", "parallel"):
        before = getattr(BASE, section)
        built[section] = replace(before, **{key: said.pop(key) for key in [*said] if hasattr(before, key)})
    assert not said
    (row,) = replace(BASE, **built).rows
    return configured(row, Task(inputs, outputs, "cross_entropy"))
