"""The models of scenarios, and their units of layers for training.

Every module of this folder with a `KIND` is in the table, so a new model is one new file.
"""

import pkgutil
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

from zerosim.core.parts import Table
from zerosim.models.units import Model, ModelKind, Task

MODULES = [import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
MODELS: Table[ModelKind] = Table({module.KIND.key: module.KIND for module in MODULES if hasattr(module, "KIND")})


def build(settings: Any, task: Task, groups: Sequence[Sequence[int]]) -> Model:
    """The model of kind `settings.kind` for a task; `settings` are the keys of a scenario's [model].

    Its task is the given one, with the model's own numbers of inputs and outputs. `groups` lists the layers of each
    unit. Raises `ZerosimError` for sizes that do not go together.
    """
    model = MODELS[settings.kind].for_task(settings, task, groups, settings.frozen)
    return replace(model, task=replace(task, inputs=model.task.inputs, outputs=model.task.outputs))
