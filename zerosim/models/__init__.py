"""The models that a scenario can name, and the units of layers that training works on.

Every module of this folder that has a `KIND` is in the table: a new model is one new file.
"""

import pkgutil
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from zerosim.models.units import Model, ModelKind, Task
from zerosim.parts import Table

LayerGroups = Sequence[Sequence[int]]

MODULES = [import_module(f"{__name__}.{each.name}") for each in pkgutil.iter_modules(__path__)]
MODELS: Table[ModelKind] = Table({each.KIND.key: each.KIND for each in MODULES if hasattr(each, "KIND")})


def build(settings: Any, task: Task, groups: LayerGroups) -> Model:
    """The model of kind `settings.kind`, whose keys are those of a scenario's [model], for its data.

    `groups` names the layers of each unit. Raises `ZerosimError` where sizes do not go together.
    """
    return MODELS[settings.kind].for_task(settings, task, groups, settings.frozen)
