"""The cost of checkpoints: a checkpoint against a plain write of the same bytes, and the test whether one is due."""

import itertools
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np

from zerosim.checkpoint.keeping import Keeper
from zerosim.checkpoint.resuming import Restoring
from zerosim.checkpoint.saving import Saving, states, unpadded
from zerosim.comm import Communicator
from zerosim.commands.benches.samples import Sample, by_turns, overhead, slower
from zerosim.commands.benches.timings import Workload, plain, steps
from zerosim.numerics.digests import little_endian
from zerosim.scenario import Scenario
from zerosim.stages.replica import Replica
from zerosim.training.batches import Batches
from zerosim.worlds.objects import broadcast_object

STAGE = "zero3"


def time_checkpoints(comm: Communicator, rounds: int, workload: Workload) -> list[Sample]:
    """Two comparisons.

        saved       a checkpoint of all ranks, against the same bytes in a new file per rank, flushed; the removal of
                    earlier checkpoints is finished before the next one and is not timed
        not saved   a step with the test whether a checkpoint is due, in a run without checkpoints, against a plain step
    """
    with ExitStack() as stack:
        here = stack.enter_context(tempfile.TemporaryDirectory()) if comm.rank == 0 else ""
        folder = Path(broadcast_object(comm, here))
        trained, beside = plain(comm, STAGE, workload), plain(comm, STAGE, workload)
        saving = Saving(Scenario(), "", 1, 1, {trained[0].config.name: folder / "saved"})

        def cleared(step: Iterator[None]) -> float:
            seconds = slower(comm, step)
            saving.removal.finish()
            remove_before_last(folder, comm.rank)
            return seconds

        pairs = {
            "not saved": {"with": asking(comm, *beside), "without": steps(trained)},
            "saved": {"with": saves(comm, *trained, saving), "without": writes(comm, trained[1], folder)},
        }
        found = [
            overhead(STAGE, what, *by_turns(
                comm, rounds, {name: partial(cleared, step) for name, step in pair.items()}).values())
            for what, pair in pairs.items()]
        broadcast_object(comm, None)
    return found


def asking(comm: Communicator, batches: Batches, mine: Replica) -> Iterator[None]:
    """Steps of a run without checkpoints, each followed by the test whether one is due."""
    keeper = Keeper(None, Restoring({}))
    for _ in steps((batches, mine)):
        keeper.save(comm, batches.config, mine, [])
        yield


def saves(comm: Communicator, batches: Batches, mine: Replica, saving: Saving) -> Iterator[None]:
    """Checkpoints of the present state, with increasing step numbers."""
    for number in itertools.count(1):
        mine.state.step = number
        saving.save(comm, batches.config, mine, [np.zeros(1, np.float32)])
        yield


def writes(comm: Communicator, mine: Replica, folder: Path) -> Iterator[None]:
    """Plain writes of the state to a new file each, flushed, without digest, manifest or rename."""
    for number in itertools.count():
        with open(folder / f"{comm.rank}-{number:08d}", "xb") as file:
            for unit in mine.units:
                shard = mine.state.layouts.shard(unit)
                for _, buffer, layout in states(mine, unit):
                    file.write(little_endian(unpadded(layout.part(buffer, shard), shard)))
            file.flush()
            os.fsync(file.fileno())
        yield


def remove_before_last(folder: Path, rank: int) -> None:
    """Remove all but the last plain file of a rank."""
    for path in sorted(folder.glob(f"{rank}-*"))[:-1]:
        path.unlink()
