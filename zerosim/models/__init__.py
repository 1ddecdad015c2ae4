"""What is trained: units of layers, each a function one can read; and the models that a scenario can name."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

from zerosim.models import mlp, transformer
from zerosim.models.units import Model, Task

Groups = Sequence[Sequence[int]]

MODELS: dict[str, Callable[[Any, Task, Groups, Collection[int]], Model]] = {
    "mlp": mlp.for_task,
    "transformer": transformer.for_task,
}


def build(settings: Any, task: Task, groups: Groups) -> Model:
    """The model of kind `settings.kind`, whose keys are those of a scenario's [model], for its data.

    `groups` names the layers of each unit. Raises `ZerosimError` where sizes do not go together.
    """
    return MODELS[settings.kind](settings, task, groups, settings.frozen)
