"""The checkpoints of a run: the folders of its rows, when they are saved, and from which each row resumes.

The division of the work and the claims about it may differ from the saved training: [world], [parallel], [[variant]],
[check], [checkpoint], texts, and train.steps. All other sections say what is trained, and on which data; they must be
the same.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from zerosim.core.allocation import Array
from zerosim.core.comm import Communicator
from zerosim.core.errors import CheckpointError, ZerosimError
from zerosim.core.files import contents, reason
from zerosim.core.words import plural
from zerosim.scenario.schema import resolved
from zerosim.scenario.values import shown
from zerosim.stages import STAGES
from zerosim.stages.replica import Replica
from zerosim.training.collect import gathered
from zerosim.training.config import Config, Resumed
from zerosim.training.experiment import Experiment
from zerosim.training.state_file import LOSSES, WEIGHTS, Saved, named, path_of, read, retired, steps_in, write

LONGEST_NAME = 60
FOLDER = ("checkpoint", "folder")
FIXED = ("kind", "model", "train")
FREE = (("train", "steps"),)


@dataclass(frozen=True)
class Keeper:
    """Saves rows in `folders`, by their names, after every `every` steps and after the last."""

    experiment: Experiment
    folders: Mapping[str, Path]

    def begin(self) -> None:
        """Make the folders to save in; one process calls it before the others save there."""
        for folder in self.folders.values():
            try:
                folder.mkdir(parents=True, exist_ok=True)
                for each in folder.glob(".step-*"):
                    each.unlink()
            except OSError as error:
                raise cannot(folder, error) from None

    def save(self, comm: Communicator, config: Config, replica: Replica, losses: Sequence[Array]) -> None:
        """Save the state of all ranks after a step, if it is due; rank 0 writes."""
        step, asked, slots = replica.state.step, self.experiment.scenario.checkpoint, config.rule.slots
        if not self.folders or (step % asked.every and step != config.steps):
            return
        kinds = [(WEIGHTS, config.precision.weights), *((slot, config.precision.state) for slot in slots)]
        wholes = [(what, dtype, whole, piece) for what, dtype in kinds for whole, piece in zip(
            config.in_one_piece.units, config.model.units, strict=True) if what == WEIGHTS or not piece.frozen]
        heads = [(named(what, each.name), dtype, each.shape) for what, dtype, whole, _ in wholes
                 for each in whole.places]

        def contents() -> Iterator[Array]:
            for what, dtype, whole, piece in wholes:
                yield gathered(comm, config, replica, whole, piece, what, dtype)
            yield np.concatenate(losses)

        if comm.rank:
            list(contents())
            return
        folder, state = self.folders[config.name], replica.state
        about = {
            "scenario": resolved(self.experiment.scenario), "data_sha256": self.experiment.data_sha256,
            "parts": {str(part): part.sha256 for part in self.experiment.scenario.parts.values()},
            "row": config.name, "step": step, "updates": state.updates, "loss_scale": float(state.scaling.loss_scale),
            "good_steps": state.scaling.good_steps, "stage": str(config.stage_key), "ranks": config.all_ranks}
        try:
            write(path_of(folder, step), about, [*heads, (LOSSES, config.precision.state, [len(losses)])], contents())
            for each in retired(folder, asked.keep):
                each.unlink(missing_ok=True)
        except OSError as error:
            raise cannot(folder, error) from None


def cannot(folder: Path, error: OSError) -> ZerosimError:
    """The error for a row that cannot be saved, with the state of its `folder`."""
    left = "the previous checkpoint is complete" if steps_in(folder) else "it has no complete checkpoint"
    return ZerosimError(f"cannot write a checkpoint in {folder}: {reason(error)}; {left}")


def with_checkpoints(experiment: Experiment, resume: str | None, *, accept_python: bool = False) -> Experiment:
    """The experiment resumed from the folder `resume`, if given, and with a `Keeper` if it saves its rows.

    Python files that the scenario names must be unchanged, unless `accept_python` is set. Raises `CheckpointError` if
    rows would be saved among checkpoints of another run.
    """
    scenario, names = experiment.scenario, folder_names(experiment)
    if resume is not None:
        found = {row: None if path is None else read(path) for row, path in find(Path(resume), names).items()}
        for saved in found.values():
            refuse_another_training(experiment, saved, accept_python=accept_python)
        experiment = replace(experiment, rows=tuple(
            config if (saved := found[config.name]) is None else replace(config, resumed=resumption(saved))
            for config in experiment.rows))
    asked = scenario.checkpoint
    if not asked.folder:
        return experiment
    if "\0" in asked.folder:
        raise scenario.origin.error("checkpoint.folder: a path cannot contain a NUL byte", FOLDER)
    folders = {row: scenario.origin.folder(FOLDER) / asked.folder / name for row, name in names.items()}
    for config in experiment.rows:
        refuse_others(folders[config.name], config)
    return replace(experiment, keeper=Keeper(experiment, folders))


def resumptions(experiment: Experiment) -> list[str]:
    """The checkpoint from which each row resumes, if it does, in words."""
    return [
        f"{row.name} resumes after step {row.done} of {row.steps}, from {row.resumed.path}, saved by "
        f"{row.resumed.stage} on {plural(row.resumed.ranks, 'rank')}"
        for row in experiment.rows if row.resumed is not None
    ]


def resumption(saved: Saved) -> Resumed:
    about = saved.about
    return Resumed(str(saved.path), saved.step, about["updates"], about["loss_scale"], about["good_steps"],
                   about["sha256"], about["stage"], about["ranks"], saved.array(LOSSES, [saved.step]), saved.fill,
                   saved.whole)


def refuse_others(folder: Path, config: Config) -> None:
    """Refuse to save a row in a folder with checkpoints, except behind the checkpoint from which it resumes."""
    steps = steps_in(folder)
    if not steps:
        return
    if config.resumed is None:
        raise CheckpointError(f"{folder} already has checkpoints up to step {steps[-1]}; resume from them with "
                              f"--resume {folder.parent}, or save elsewhere")
    if Path(config.resumed.path).resolve() != path_of(folder, steps[-1]).resolve():
        raise CheckpointError(f"{folder} has checkpoints up to step {steps[-1]}, but {config.name} resumes from "
                              f"{config.resumed.path}; save elsewhere")


def folder_names(experiment: Experiment) -> dict[str, str]:
    """The folder's name for each row, by the row's name: its stage, or the variant's name in characters of file names.
    """
    found: dict[str, str] = {}
    for config in experiment.rows:
        shipped = config.stage_key in STAGES and not experiment.scenario.variant
        name = str(config.stage_key) if shipped else file_name(config.name)
        taken = sum(name == other or other.startswith(f"{name}.") for other in found.values())
        found[config.name] = f"{name}.{taken + 1}" if taken else name
    return found


def file_name(words: str) -> str:
    """
    >>> file_name("Stage III, prefetch = true"), file_name("零")
    ('stage-iii-prefetch-true', 'row')
    """
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")[:LONGEST_NAME] or "row"


def find(place: Path, rows: Mapping[str, str]) -> dict[str, Path | None]:
    """The last checkpoint of each row in `place`, None for a row without one; `rows` has folders' names by rows'.

    `place` may be the folder of a run or of a row, or one checkpoint; that of a single row serves all rows.
    """
    if os.path.isfile(place):
        return dict.fromkeys(rows, place)
    if not os.path.isdir(place):
        raise CheckpointError(f"--resume {place}: no such folder; name the folder of a run or a row, or a checkpoint")
    if steps_in(place):
        return dict.fromkeys(rows, latest(place))
    saved = [each for each in contents(place) if steps_in(each)]
    found: dict[str, Path | None] = {}
    for row, name in rows.items():
        if os.path.isdir(place / name):
            found[row] = latest(place / name)
        elif len(saved) == 1:
            found[row] = latest(saved[0])
        else:
            there = ", ".join(map(str, saved)) or "none"
            raise CheckpointError(f"--resume {place}: no checkpoint of {row} in a folder {name}; "
                                  f"folders with checkpoints: {there}")
    return found


def latest(folder: Path) -> Path | None:
    steps = steps_in(folder)
    return path_of(folder, steps[-1]) if steps else None


def refuse_another_training(experiment: Experiment, saved: Saved | None, *, accept_python: bool) -> None:
    """Refuse a checkpoint of another training, naming what differs, and files of Python that have changed."""
    if saved is None:
        return
    scenario, about = experiment.scenario, saved.about
    differing = list(differences(about["scenario"], resolved(scenario)))
    if experiment.data_sha256 != about["data_sha256"] and not differing:
        differing = ["data: the samples or the initial weights differ from those of the checkpoint"]
    if differing:
        more = f"; and {len(differing) - 3} more" * (len(differing) > 3)
        raise CheckpointError(f"{saved.path} belongs to another training run: {'; '.join(differing[:3])}{more}. "
                              "Restore these values, or train from the start without --resume")
    if saved.step > scenario.train.steps:
        raise CheckpointError(f"{saved.path} is of step {saved.step}, but train.steps is {scenario.train.steps}; set "
                              f"it to at least {saved.step}")
    for part in scenario.parts.values() if not accept_python else ():
        was = about["parts"].get(str(part), part.sha256)
        if was != part.sha256:
            raise CheckpointError(
                f"{saved.path} was trained with other code of {part}: sha256 {was[:12]}…, and now {part.sha256[:12]}…. "
                "Restore the file, or resume with --accept-python: earlier and later steps then use different code")


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
