"""Save: every K steps all ranks write their shards, and rank 0 writes the manifest.

Measured on two cores: a checkpoint of 35 MB by two ranks took 28 ms, writing and flushing two new files of as many
bytes 22 ms (ratio 1.28, 1.12 to 1.47 over 30 rounds). The difference is SHA-256, 13 ms of each core while the disk
writes, and three more flushes. In a run that saves nothing, a step with the question whether to save took
0.99 of one without it.
"""

import errno
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from zerosim.allocation import Array
from zerosim.checkpoint import folders, shards
from zerosim.checkpoint.folders import Removal
from zerosim.checkpoint.manifest import (
    LOSSES,
    LegRecord,
    Manifest,
    ParameterRecord,
    PieceRecord,
    Shard,
    UnitRecord,
    encoded,
)
from zerosim.comm import Communicator
from zerosim.errors import ZerosimError
from zerosim.files import reason
from zerosim.models.units import Unit
from zerosim.scenario.schema import Scenario, plain, resolved
from zerosim.sharding import Layout, shard
from zerosim.stages.replica import Replica
from zerosim.training.comparison import WEIGHTS, numbered
from zerosim.training.config import Config
from zerosim.worlds.objects import broadcast_object, gather_objects

IN_COMPANY = (errno.EEXIST, errno.ENOENT, errno.ENOTEMPTY)
"""The errors of a save while another run writes, publishes or removes the same checkpoints."""


@dataclass(frozen=True)
class Saving:
    """The folder of each row by its name, the steps between two checkpoints, and the number of checkpoints to keep."""

    scenario: Scenario
    data_sha256: str
    every: int
    keep: int
    folders: Mapping[str, Path]
    removal: Removal = field(default_factory=Removal)
    """Removes earlier checkpoints while training continues."""

    def is_due(self, step: int, steps: int) -> bool:
        """Whether to save: after every `every` steps, and after the last."""
        return step % self.every == 0 or step == steps

    def prepare(self) -> None:
        """Make the rows' folders; raises `ZerosimError` if that fails."""
        for folder in self.folders.values():
            try:
                folders.cleared(folder)
            except OSError as error:
                raise cannot(folder, folder, error) from None

    def save(self, comm: Communicator, config: Config, replica: Replica, losses: Sequence[Array]) -> None:
        """Save the state of all ranks after a step: a complete checkpoint, or none and `ZerosimError` on rank 0."""
        folder, step = self.folders[config.name], replica.state.step
        beside = folder / f".{folders.name_of(step)}"
        problem = None
        if comm.rank == 0:
            try:
                self.removal.finish()
                folders.begun(folder, step)
            except OSError as error:
                problem = cannot(folder, folder, error)
        settle(comm, problem, beside)
        shard, problem = None, None
        try:
            shard = write_shard(beside, comm.rank, config, replica, losses)
        except OSError as error:
            problem = cannot(folder, beside / file_name(comm.rank), error, rank=comm.rank)
        written = gather_objects(comm, shard)
        settle(comm, first(gather_objects(comm, problem)), beside)
        if comm.rank == 0:
            assert written is not None
            try:
                self.removal.begin(publish(beside, self._manifest(config, replica, written), self.keep))
                if step == config.steps:
                    self.removal.finish()
            except OSError as error:
                problem = cannot(folder, beside, error)
        settle(comm, problem, beside)

    def _manifest(self, config: Config, replica: Replica, written: Sequence[Shard]) -> Manifest:
        state = replica.state
        return Manifest(
            scenario=resolved(self.scenario),
            data_sha256=self.data_sha256,
            parts={str(part): part.sha256 for part in self.scenario.parts.values()},
            row=config.name,
            step=state.step,
            updates=state.updates,
            loss_scale=float(state.scaling.loss_scale),
            good_steps=state.scaling.good_steps,
            samples=state.step * config.samples,
            legs=tuple(
                LegRecord(
                    min(leg.until, state.step), leg.config.all_ranks, leg.config.steps, plain(leg.config.row.parallel),
                    leg.config.row.ranks_per_host)
                for leg in config.legs
            ),
            units=tuple(map(unit_record, config.model.units)),
            shards=tuple(written),
        )


def unit_record(unit: Unit) -> UnitRecord:
    cuts = [None if (cut := place.parameter.cut) is None or cut.direction.alone else cut for place in unit.places]
    parameters = tuple(ParameterRecord(place.name, place.shape, place.start, cut)
                       for place, cut in zip(unit.places, cuts, strict=True))
    return UnitRecord(unit.name, unit.numbers, unit.count, unit.frozen, parameters)


def cannot(folder: Path, path: Path, error: OSError, rank: int | None = None) -> ZerosimError:
    """The error for a row that cannot be saved at `path`, with the state of its `folder`.

    >>> print(cannot(Path("no/such"), Path("no/such"), OSError(errno.ENOSPC, "No space left on device"), rank=1))
    rank 1 cannot write the checkpoint no/such: no space left on device; no/such has no complete checkpoint
    """
    who = "" if rank is None else f"rank {rank} "
    company = "; if another run saves there, give each run its own folder" if error.errno in IN_COMPANY else ""
    return ZerosimError(f"{who}cannot write the checkpoint {path}: {reason(error)}; {still_there(folder)}{company}")


def still_there(folder: Path) -> str:
    """The state of a row's folder, in words, as far as it can be read."""
    try:
        whole = folders.steps_in(folder)
    except OSError:
        return "the previous checkpoint is intact"
    return "the previous checkpoint is complete" if whole else f"{folder} has no complete checkpoint"


def first(problems: Sequence[Any] | None) -> Any:
    return next((each for each in problems or [] if each is not None), None)


def settle(comm: Communicator, problem: ZerosimError | None, beside: Path) -> None:
    """Return on all ranks if rank 0 has no problem; if it has, raise it there and remove the incomplete files."""
    if problem is not None:
        shutil.rmtree(beside, ignore_errors=True)
        raise problem
    broadcast_object(comm, None)


def file_name(rank: int) -> str:
    return f"rank-{rank}.safetensors"


def write_shard(folder: Path, rank: int, config: Config, replica: Replica, losses: Sequence[Array]) -> Shard:
    """Write this rank's unique chunk of every state, as far as its place answers for it, and the rank's own residuals;
    raises `OSError`."""
    coordinates = config.directions.coordinates(config.directions.place(rank))
    arrays: dict[str, Array] = {}
    pieces: dict[str, PieceRecord] = {}
    for number, unit in numbered(replica, config.model.units):
        if unit.end:
            continue    # the first rank of the pipeline has it too
        mine = shard(unit.count, replica.mesh.size, replica.mesh.alone)
        answered = [(start - mine.start, stop - mine.start)
                    for start, stop in unit.answered(mine.start, mine.stop, coordinates)]
        for what, buffer, layout in states(replica, unit):
            name = f"{what}.{unit.name}"
            arrays[name] = stretches(layout.part(buffer, mine), answered)
            pieces[name] = PieceRecord(number, what, mine)
        whole = replica.state.layouts.full(unit)
        for what, residual in replica.state.residuals_of(unit).items():
            name = f"{what}.{unit.name}"
            arrays[name], pieces[name] = residual[: unit.count], PieceRecord(number, what, whole)
    if rank == 0:
        arrays[LOSSES] = np.concatenate(losses)
    return Shard(shards.write(folder / file_name(rank), arrays), pieces)


def states(replica: Replica, unit: Unit) -> list[tuple[str, Array, Layout]]:
    """The state of a unit that the next step needs: its weights, and the optimizer's arrays."""
    state = replica.state
    layout = state.layouts.of(unit, "optimizer")
    slots = [(slot, buffer, layout) for slot, buffer in state.optimizer.get(unit, {}).items()]
    return [(WEIGHTS, state.weights[unit], state.layouts.of(unit, "parameters")), *slots]


def stretches(values: Array, bounds: Sequence[tuple[int, int]]) -> Array:
    """The elements of `values` within `bounds`, one stretch after the other; a view, if there is one only."""
    found = [values[start:stop] for start, stop in bounds]
    return found[0] if len(found) == 1 else np.concatenate([*found, values[:0]])


def publish(beside: Path, manifest: Manifest, keep: int) -> list[Path]:
    """Write the manifest and publish the checkpoint; returns the folders to remove; raises `OSError`."""
    folders.write_flushed(beside / folders.MANIFEST, encoded(manifest))
    return folders.published(beside, keep=keep)
