"""The checkpoints of a run: the folders of its rows, when they are saved, and from which each row resumes.

The division of the work and the claims about it may differ from the saved training: [world], [parallel], [[variant]],
[check], [checkpoint], texts, and train.steps. All other sections say what is trained, and on which data; they must be
the same.
"""

import fcntl
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from zerosim.core.allocation import Array
from zerosim.core.comm import Communicator
from zerosim.core.errors import CheckpointError, ZerosimError
from zerosim.core.files import contents, reason
from zerosim.core.words import plural
from zerosim.scenario.schema import parts_in, resolved
from zerosim.scenario.values import shown
from zerosim.stages import STAGES
from zerosim.stages.replica import Replica
from zerosim.stages.storage import WEIGHTS
from zerosim.training.collect import gathered
from zerosim.training.config import Config
from zerosim.training.experiment import Experiment
from zerosim.training.state_file import LOSSES, Saved, named, path_of, read, steps_in, write

FOLDER = ("checkpoint", "folder")


def begin(experiment: Experiment) -> ExitStack:
    """Make the folders to save in, locked until the result is closed or the process ends; one process calls it before
    the others save there. Raises `CheckpointError` if another run saves there."""
    with ExitStack() as locks:
        for folder in experiment.folders.values():
            try:
                folder.mkdir(parents=True, exist_ok=True)
                locks.callback(os.close, lock := os.open(folder, os.O_RDONLY))
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise CheckpointError(
                        f"another run saves in {folder}; wait until it ends, or save elsewhere") from None
                except OSError:
                    pass    # a file system without locks
                for unfinished in folder.glob(".step-*"):
                    unfinished.unlink()
            except OSError as error:
                raise cannot(folder, error) from None
        return locks.pop_all()


def save(
    comm: Communicator, experiment: Experiment, config: Config, replica: Replica, losses: Sequence[Array]
) -> None:
    """Save the state of all ranks in the row's folder; rank 0 writes."""
    kinds = [(WEIGHTS, config.precision.weights), *((slot, config.precision.state) for slot in config.rule.slots)]
    wholes = [(what, dtype, whole, piece) for what, dtype in kinds for whole, piece in zip(
        config.in_one_piece.units, config.model.units, strict=True) if what == WEIGHTS or not piece.frozen]
    heads = [(named(what, place.name), dtype, place.shape)
             for what, dtype, whole, _ in wholes for place in whole.places]

    def contents() -> Iterator[Array]:
        for what, dtype, whole, piece in wholes:
            yield gathered(comm, config, replica, whole, piece, what, dtype)
        yield np.concatenate(losses)

    if comm.rank:
        list(contents())
        return
    scenario, state, folder = experiment.scenario, replica.state, experiment.folders[config.name]
    about = {
        "scenario": resolved(scenario), "data_sha256": experiment.data_sha256,
        "parts": {str(part): part.sha256 for _, part in parts_in(scenario)}, "row": config.name, "step": state.step,
        "updates": state.updates, "loss_scale": float(state.scaling.loss_scale),
        "good_steps": state.scaling.good_steps, "stage": str(config.stage_key), "ranks": config.directions.ranks}
    try:
        losses_head = (LOSSES, config.precision.losses, [len(losses)])
        write(path_of(folder, state.step), about, [*heads, losses_head], contents())
        for step in steps_in(folder)[: -scenario.checkpoint.keep]:
            path_of(folder, step).unlink(missing_ok=True)
    except OSError as error:
        raise cannot(folder, error) from None


def cannot(folder: Path, error: OSError) -> ZerosimError:
    """The error for a row that cannot be saved, with the state of its `folder`."""
    left = "the previous checkpoint is complete" if steps_in(folder) else "it has no complete checkpoint"
    return ZerosimError(f"cannot write a checkpoint in {folder}: {reason(error)}; {left}")


def with_checkpoints(experiment: Experiment, resume: str | None, *, accept_python: bool = False) -> Experiment:
    """The experiment resumed from the folder `resume`, if given, and with a folder for each row if it saves them.

    Python files that the scenario names must be unchanged, unless `accept_python` is set. Raises `CheckpointError` if
    rows would be saved among checkpoints of another run.
    """
    scenario, names = experiment.scenario, folder_names(experiment)
    if resume is not None:
        checkpoints = {row: None if path is None else read(path) for row, path in find(Path(resume), names).items()}
        for saved in filter(None, checkpoints.values()):
            refuse_another_training(experiment, saved, accept_python=accept_python)
        experiment = replace(experiment, rows=tuple(
            replace(config, resumed=checkpoints[config.name]) for config in experiment.rows))
    if not scenario.checkpoint.folder:
        return experiment
    whole = scenario.origin.folder(FOLDER) / scenario.checkpoint.folder
    if os.path.isfile(whole):
        raise CheckpointError(f"{whole} is a file; name a folder to save checkpoints in")
    folders = {row: whole / name for row, name in names.items()}
    for config in experiment.rows:
        folder, resumed = folders[config.name], config.resumed
        steps = steps_in(folder)
        if steps and (resumed is None or resumed.path.resolve() != path_of(folder, steps[-1]).resolve()):
            begins = f", but {config.name} resumes from {resumed.path}" if resumed else ""
            raise CheckpointError(f"{folder} already has checkpoints up to step {steps[-1]}{begins}; resume from the "
                                  f"last with --resume {folder.parent}, or save elsewhere")
    return replace(experiment, folders=folders)


def resumptions(experiment: Experiment) -> list[str]:
    """The checkpoint from which each row resumes, if it does, in words."""
    return [
        f"{row.name} resumes after step {row.done} of {row.train.steps}, from {row.resumed.path}, saved by "
        f"{row.resumed.about['stage']} on {plural(row.resumed.about['ranks'], 'rank')}"
        for row in experiment.rows if row.resumed is not None
    ]


def folder_names(experiment: Experiment) -> dict[str, str]:
    """The folder of each row by the row's name: its stage, or the variant's name in characters of file names."""
    names: dict[str, str] = {}
    for number, config in enumerate(experiment.rows, start=1):
        shipped = config.stage_key in STAGES and not experiment.scenario.variant
        name = str(config.stage_key) if shipped else file_name(config.name)
        names[config.name] = f"{name}.{number}" if name in names.values() else name
    return names


def file_name(words: str) -> str:
    """Words as the name of a folder; `row` if no letter or digit of ASCII is in them.

    >>> file_name("Stage III, prefetch = true"), file_name("零")
    ('stage-iii-prefetch-true', 'row')
    """
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")[:60] or "row"


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
    saved = [folder for folder in contents(place) if steps_in(folder)]
    checkpoints: dict[str, Path | None] = {}
    for row, name in rows.items():
        if os.path.isdir(place / name) or len(saved) == 1:
            checkpoints[row] = latest(place / name if os.path.isdir(place / name) else saved[0])
        else:
            there = ", ".join(map(str, saved)) or "none"
            raise CheckpointError(f"--resume {place}: no checkpoint of {row} in a folder {name}; "
                                  f"folders with checkpoints: {there}")
    return checkpoints


def latest(folder: Path) -> Path | None:
    steps = steps_in(folder)
    return path_of(folder, steps[-1]) if steps else None


def refuse_another_training(experiment: Experiment, saved: Saved, *, accept_python: bool) -> None:
    """Refuse a checkpoint of another training, naming what differs, and files of Python that have changed."""
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
    for _, part in parts_in(scenario) if not accept_python else ():
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
    for name in ("model", "train"):
        for key, value in now[name].items():
            if (name, key) != ("train", "steps") and was[name].get(key, value) != value:
                before, after = (str(one)[:60] if isinstance(one, list) else shown(one)
                                 for one in (was[name][key], value))
                yield f"{name}.{key} was {before}, is {after}"
