"""PyTorch's trainers over these collectives, compared with one process by raw bytes after every step.

    mpirun -n 4 python -m zerosim.torch.check

trains a small model in every way of `zerosim.torch.ways`; exit code 1 if a bit differs anywhere.
"""

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from zerosim.torch.alone import Alone
from zerosim.torch.arrays import flat
from zerosim.torch.ways import WAYS, Trainer, Way
from zerosim.worlds.mpi import connect
from zerosim.worlds.objects import broadcast_object, gather_objects

STEPS = 3


@dataclass(frozen=True)
class Difference:
    """The first element of a rank whose bytes differ from those of one process."""

    rank: int
    step: int
    parameter: str
    index: int
    found: float
    due: float

    def __str__(self) -> str:
        return (f"rank {self.rank}, step {self.step}: element {self.index} of {self.parameter} is {self.found!r}, "
                f"where one process has {self.due!r}")


def check(way: Way) -> Difference | None:
    """The first difference of all ranks, on every rank; None if all bytes are equal. All ranks call this."""
    comm = connect()
    found = gather_objects(comm, first_difference(way))
    first = None if found is None else min(filter(None, found), key=lambda each: (each.step, each.rank), default=None)
    said: Difference | None = broadcast_object(comm, first)
    return said


def first_difference(way: Way) -> Difference | None:
    """This rank's first difference; it trains to the end in any case."""
    trainer, alone = Trainer(way), Alone(way, dist.get_world_size())
    first = None
    for step in range(1, STEPS + 1):
        trainer.step(step)
        alone.step(step)
        first = first or next(differences(trainer.plain, alone, step), None)
    return first


def differences(model: Any, alone: Alone, step: int) -> Any:
    """The first differing element of each parameter, or of the piece of it that this rank keeps."""
    for (name, parameter), due in zip(model.named_parameters(), alone.parameters, strict=True):
        mine, whole = parameter.detach(), due.detach()
        if hasattr(mine, "to_local"):
            shards, place = mine.device_mesh.size(-1), mine.device_mesh.get_local_rank(mine.device_mesh.ndim - 1)
            rows = -(-len(whole) // shards)
            mine, whole = mine.to_local(), whole[place * rows : (place + 1) * rows]
        one, other = flat(mine.contiguous(), "checking"), flat(whole.contiguous(), "checking")
        apart = np.flatnonzero(one.view(np.uint32) != other.view(np.uint32))
        if len(one) != len(other) or len(apart):
            index = int(apart[0])
            yield Difference(dist.get_rank(), step, name, index, float(one[index]), float(other[index]))


def main(ways: tuple[Way, ...] = WAYS) -> int:
    """Check the ways that support this number of ranks; 1 if any of them differs, else 0."""
    torch.set_num_threads(1)
    dist.init_process_group("zerosim")
    ranks, differing = dist.get_world_size(), 0
    for way in ways:
        if way.serves(ranks):
            difference = check(way)
            differing += difference is not None
            if dist.get_rank() == 0:
                print(f"{way.name:42} {'same bits as one process' if difference is None else difference}", flush=True)
    dist.destroy_process_group()
    return int(differing > 0)


if __name__ == "__main__":
    import zerosim.torch  # noqa: F401 - registers the backend

    sys.exit(main())
