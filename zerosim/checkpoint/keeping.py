"""The checkpoints of a run: the folders of its rows, and the checkpoints from which they resume."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from zerosim.allocation import Array
from zerosim.checkpoint import folders
from zerosim.checkpoint.resuming import Restoring, find, resumed
from zerosim.checkpoint.saving import Saving
from zerosim.comm import Communicator
from zerosim.errors import CheckpointError
from zerosim.stages import STAGES
from zerosim.stages.replica import Replica
from zerosim.training.config import Config
from zerosim.training.experiment import Experiment

LONGEST_NAME = 60
FOLDER = ("checkpoint", "folder")


@dataclass(frozen=True)
class Keeper:
    """Saves after the steps of `saving`, and restores the checkpoints of `restoring`: a `Keeping`."""

    saving: Saving | None
    restoring: Restoring

    def begin(self) -> None:
        """Make the folders to save in, if there are any; one process calls it before the others save there."""
        if self.saving is not None:
            self.saving.prepare()

    def restore(self, config: Config, replica: Replica, place: int) -> list[Array]:
        return self.restoring.restore(config, replica, place)

    def save(self, comm: Communicator, config: Config, replica: Replica, losses: Sequence[Array]) -> None:
        if self.saving is not None and self.saving.is_due(replica.state.step, config.steps):
            self.saving.save(comm, config, replica, losses)


def keeper(
    experiment: Experiment, resume: str | None, *, accept_python: bool = False
) -> tuple[Experiment, Keeper | None]:
    """The experiment resumed from the folder `resume`, if given, and its `Keeper`; None if it neither saves nor
    resumes.

    Python files that the scenario names must be unchanged, unless `accept_python` is set. Raises `CheckpointError` if
    rows would be saved among checkpoints of another run.
    """
    scenario = experiment.scenario
    names = folder_names(experiment)
    restoring = Restoring({})
    if resume is not None:
        experiment, restoring = resumed(
            experiment, find(Path(resume), names), accept_python=accept_python)
    asked = scenario.checkpoint
    if not asked.folder:
        return experiment, Keeper(None, restoring) if resume is not None else None
    if "\0" in asked.folder:
        raise scenario.origin.error("checkpoint.folder: a path cannot contain a NUL byte", FOLDER)
    top = scenario.origin.folder(FOLDER) / asked.folder
    places = {row: top / name for row, name in names.items()}
    for config in experiment.rows:
        refuse_others(places[config.name], config)
    saving = Saving(scenario, experiment.data_sha256, asked.every, asked.keep, places)
    return experiment, Keeper(saving, restoring)


def refuse_others(folder: Path, config: Config) -> None:
    """Refuse to save a row in a folder with checkpoints, except behind the checkpoint from which it resumes."""
    steps = folders.steps_in(folder)
    if not steps:
        return
    if config.resumed is None:
        raise CheckpointError(f"{folder} already has checkpoints up to step {steps[-1]}; resume from them with "
                              f"--resume {folder.parent}, or save elsewhere")
    if Path(config.resumed.folder).resolve() != (folder / folders.name_of(steps[-1])).resolve():
        raise CheckpointError(f"{folder} has checkpoints up to step {steps[-1]}, but {config.name} resumes from "
                              f"{config.resumed.folder}; save elsewhere")


def folder_names(experiment: Experiment) -> dict[str, str]:
    """The folder's name for each row, by the row's name: its stage, or the variant's name in characters of file names.
    """
    found: dict[str, str] = {}
    for config in experiment.rows:
        shipped = config.row.stage in STAGES and not experiment.scenario.variant
        name = config.row.stage if shipped else file_name(config.name)
        taken = sum(name == other or other.startswith(f"{name}.") for other in found.values())
        found[config.name] = f"{name}.{taken + 1}" if taken else name
    return found


def file_name(words: str) -> str:
    """
    >>> file_name("Stage III, prefetch = true"), file_name("零")
    ('stage-iii-prefetch-true', 'row')
    """
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")[:LONGEST_NAME] or "row"
