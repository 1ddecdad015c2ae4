"""The checkpoints of a run: the folders of its rows, the checkpoints from which they resume, and their new layouts.

The division of the work and the claims about it may differ from the saved training: [world], [parallel], [[variant]],
[check], [checkpoint], texts, and train.steps. All other sections say what is trained, and on which data; they must be
the same.

`train.steps` may change. A cosine schedule depends on it, so each leg keeps the steps that its scenario named.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from zerosim.allocation import Array
from zerosim.checkpoint import folders
from zerosim.checkpoint.manifest import LOSSES, Manifest, read_manifest
from zerosim.checkpoint.reshard import Resharded
from zerosim.checkpoint.saving import Saving, unit_record
from zerosim.comm import Communicator
from zerosim.errors import CheckpointError, ZerosimError
from zerosim.files import contents, is_file, is_folder
from zerosim.parts import Code, Loader, Named
from zerosim.scenario.origin import Origin, shown
from zerosim.scenario.rules import section_values
from zerosim.scenario.schema import Scenario, resolved
from zerosim.scenario.sections import Check, Parallel, WorldKeys
from zerosim.stages import STAGES
from zerosim.stages.replica import Replica
from zerosim.training.comparison import WEIGHTS
from zerosim.training.config import Config, Leg, Resumed, configured, joined
from zerosim.training.experiment import Experiment

LONGEST_NAME = 60
FOLDER = ("checkpoint", "folder")


@dataclass(frozen=True)
class Keeper:
    """Saves after the steps of `saving`, and restores the checkpoints of `manifests`, by folder: a `Keeping`."""

    saving: Saving | None
    manifests: Mapping[str, Manifest]

    def begin(self) -> None:
        """Make the folders to save in, if there are any; one process calls it before the others save there."""
        if self.saving is not None:
            self.saving.prepare()

    def save(self, comm: Communicator, config: Config, replica: Replica, losses: Sequence[Array]) -> None:
        if self.saving is not None and self.saving.is_due(replica.state.step, config.steps):
            self.saving.save(comm, config, replica, losses)

    def restore(self, config: Config, replica: Replica, place: int) -> list[Array]:
        """Load into the `replica` of a place the part of the saved state in its layouts, and no more.

        Returns the losses of all steps so far.

        Raises `CheckpointError` for files that differ from their manifest.
        """
        assert config.resumed is not None
        manifest = self.manifests[config.resumed.folder]
        saved = Resharded(Path(config.resumed.folder), manifest)
        coordinates = config.directions.coordinates(place)
        state, precision = replica.state, config.precision
        state.step, state.updates = manifest.step, manifest.updates
        state.scaling.loss_scale, state.scaling.good_steps = manifest.loss_scale, manifest.good_steps
        for unit in replica.units:
            layout = state.layouts.of(unit, "parameters")
            state.weights[unit] = replica.storage.room("parameters")(
                layout.length, precision.weights, kind="parameters", owner=unit.name)
            saved.fill(unit, WEIGHTS, layout, state.weights[unit], coordinates)
            if not unit.frozen:
                layout = state.layouts.of(unit, "optimizer")
                state.optimizer[unit] = {}
                room = replica.storage.room("optimizer")
                for slot in replica.rule.slots:
                    buffer = room(layout.length, precision.state, kind="optimizer", owner=unit.name)
                    saved.fill(unit, slot, layout, buffer, coordinates)
                    state.optimizer[unit][slot] = buffer
                state.residuals.begin(unit, state.layouts.full(unit).length, replica.allocate)
                if config.resumed.last.row.parallel.error_feedback:
                    for what, residual in state.residuals_of(unit).items():
                        saved.fill(unit, what, state.layouts.full(unit), residual)
        state.residuals.settle(used=True, rescaled=1.0)
        losses = np.empty(manifest.step, precision.state)
        saved.fill_losses(LOSSES, losses)
        return [loss.copy() for loss in losses.reshape(-1, 1)]


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
    manifests: Mapping[str, Manifest] = {}
    if resume is not None:
        experiment, manifests = resumed(experiment, find(Path(resume), names), accept_python=accept_python)
    asked = scenario.checkpoint
    if not asked.folder:
        return experiment, Keeper(None, manifests) if resume is not None else None
    if "\0" in asked.folder:
        raise scenario.origin.error("checkpoint.folder: a path cannot contain a NUL byte", FOLDER)
    top = scenario.origin.folder(FOLDER) / asked.folder
    places = {row: top / name for row, name in names.items()}
    for config in experiment.rows:
        refuse_others(places[config.name], config)
    saving = Saving(scenario, experiment.data_sha256, asked.every, asked.keep, places)
    return experiment, Keeper(saving, manifests)


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


FIXED = ("kind", "model", "train")
FREE = (("train", "steps"),)


def resumed(
    experiment: Experiment, found: Mapping[str, Path | None], *, accept_python: bool = False
) -> tuple[Experiment, Mapping[str, Manifest]]:
    """The rows with the steps that they resume from, and the manifests by folder; `found` has checkpoints by row.

    Raises `CheckpointError` for a checkpoint of another training.
    """
    manifests = {str(folder): read_manifest(folder) for folder in set(found.values()) if folder is not None}
    for folder, manifest in manifests.items():
        refuse_another_training(experiment, folder, manifest)
        if not accept_python:
            refuse_other_python(experiment.scenario, folder, manifest)
    rows = []
    for config in experiment.rows:
        from_folder = found[config.name]
        if from_folder is None:
            rows.append(config)
        else:
            manifest = manifests[str(from_folder)]
            legs = legs_of(experiment.scenario, str(from_folder), manifest, config)
            refuse_residuals_of_others(experiment.scenario, str(from_folder), legs[-1].config, config)
            if legs[-1].config.rule.delayed != config.rule.delayed:
                raise CheckpointError(
                    f"{from_folder} was trained with parallel.delayed_update = {str(not config.rule.delayed).lower()}, "
                    "which decides whether a checkpoint includes a delayed gradient; set the same value")
            rows.append(replace(config, resumed=Resumed(str(from_folder), manifest.step, legs)))
    return replace(experiment, rows=tuple(rows)), manifests


def find(folder: Path, rows: Mapping[str, str]) -> dict[str, Path | None]:
    """The last checkpoint of each row in `folder`, None for a row without one; `rows` has folders' names by rows'.

    `folder` may be that of a run, of a row, or of one checkpoint; a folder with a single row serves all rows.
    """
    if not is_folder(folder):
        raise CheckpointError(f"--resume {folder}: no such folder; name the folder of a run, a row or a "
                              f"checkpoint")
    if is_file(folder / folders.MANIFEST):
        return dict.fromkeys(rows, folder)
    if folders.steps_in(folder):
        return dict.fromkeys(rows, latest(folder))
    inside = list(filter(is_folder, contents(folder)))
    saved = [each for each in inside if folders.steps_in(each)]
    found: dict[str, Path | None] = {}
    for row, name in rows.items():
        if folder / name in inside:
            found[row] = latest(folder / name)
        elif len(saved) == 1:
            found[row] = latest(saved[0])
        else:
            there = ", ".join(str(each) for each in saved) or "none"
            raise CheckpointError(f"--resume {folder}: no checkpoint of {row} in a folder {name}; "
                                  f"folders with checkpoints: {there}")
    return found


def latest(folder: Path) -> Path | None:
    steps = folders.steps_in(folder)
    return folder / folders.name_of(steps[-1]) if steps else None


def refuse_another_training(experiment: Experiment, folder: str, manifest: Manifest) -> None:
    """Refuse a checkpoint of another training, naming what differs."""
    differing = list(differences(manifest.scenario, resolved(experiment.scenario)))
    if experiment.data_sha256 != manifest.data_sha256 and not differing:
        differing = ["data: the samples or the initial weights differ from those of the checkpoint"]
    if differing:
        more = f"; and {len(differing) - 3} more" * (len(differing) > 3)
        raise CheckpointError(f"{folder} belongs to another training run: {'; '.join(differing[:3])}{more}. Restore "
                              f"these values, or train from the start without --resume")
    steps = experiment.scenario.train.steps
    if manifest.step > steps:
        raise CheckpointError(f"{folder} is of step {manifest.step}, but train.steps is {steps}; set it to at least "
                              f"{manifest.step}")


def refuse_residuals_of_others(scenario: Scenario, folder: str, was: Config, config: Config) -> None:
    """Refuse residuals of a different number of ranks: a residual belongs to the rank whose codes lost it."""
    if not was.row.parallel.error_feedback or not config.row.parallel.error_feedback:
        return
    for ranks in (config.ranks, *scenario.check.same_bits_on):
        if ranks != was.ranks:
            raise CheckpointError(
                f"{folder} has the quantisation errors of {was.ranks} ranks, but {config.name} has {ranks}; resume it "
                f"on {was.ranks} ranks, or with parallel.error_feedback = false")


def refuse_other_python(scenario: Scenario, folder: str, manifest: Manifest) -> None:
    """Refuse a file of Python that has changed since the checkpoint was saved."""
    for part in scenario.parts.values():
        was = manifest.parts.get(part, part.sha256)
        if was != part.sha256:
            raise CheckpointError(
                f"{folder} was trained with other code of {part}: sha256 {was[:12]}…, and now {part.sha256[:12]}…. "
                "Restore the file, or resume with --accept-python: earlier and later steps then use different code")


@dataclass(frozen=True)
class KnownParts(Loader):
    """The parts for names in a checkpoint: those that the scenario itself names. No file is imported for a checkpoint.
    """

    known: Mapping[str, Named] = field(default_factory=dict)

    def load(self, name: str, folder: Path = Path()) -> Code:
        for part in self.known.values():
            if part == name:
                return Code(part.part, part.sha256, "")
        raise CheckpointError(f"the checkpoint was trained with {name}, which the scenario does not name; name it "
                              "there, such as in a [[variant]]")


def differences(was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """The keys that must be the same and differ, in words.

    >>> list(differences({"train": {"seed": 1}, "model": {}}, {"train": {"seed": 2, "steps": 9}, "model": {}}))
    ['train.seed was 1, is 2']
    """
    for name in FIXED:
        before, after = (each.get(name) for each in (was, now))
        if not isinstance(before, dict) or not isinstance(after, dict):
            if before != after:
                yield f"{name} was {shortened_value(before)}, is {shortened_value(after)}"
            continue
        for key in after:
            if (name, key) not in FREE and key in before and before[key] != after[key]:
                yield f"{name}.{key} was {shortened_value(before[key])}, is {shortened_value(after[key])}"


def shortened_value(value: Any) -> str:
    return str(value)[:60] if isinstance(value, list) else shown(value)


def legs_of(scenario: Scenario, folder: str, manifest: Manifest, config: Config) -> tuple[Leg, ...]:
    """The legs of all steps of a checkpoint, trained from the same weights as `config`."""
    origin = Origin(f"{folder}/{folders.MANIFEST}", loader=KnownParts(known=scenario.parts))
    legs = []
    try:
        for leg in manifest.legs:
            parallel = Parallel(**section_values(Parallel, dict(leg.parallel), ("parallel",), origin))
            hosts: dict[str, object] = {"ranks": leg.ranks, "ranks_per_host": leg.ranks_per_host}
            world = WorldKeys(**section_values(WorldKeys, hosts, ("world",), origin))
            was = replace(scenario, world=world, parallel=parallel, variant=(), check=Check(), origin=origin,
                          train=replace(scenario.train, steps=leg.steps))
            legs.append(Leg(replace(configured(was.rows[0], config.model.task), initial=config.initial), leg.until))
    except CheckpointError:
        raise
    except ZerosimError as error:
        raise CheckpointError(f"{folder} is damaged: {error}") from None
    if tuple(unit_record(unit) for unit in legs[-1].config.model.units) != manifest.units:
        raise CheckpointError(f"{folder} is damaged: its units do not match its model; use another checkpoint")
    return (*joined(legs[:-1]), legs[-1])
