"""Steps of our stages and of PyTorch's trainers over gloo, in the same processes; PyTorch over these collectives.

Both ranks run every task of a round together; figures are of the slower one.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from threadpoolctl import threadpool_limits

import zerosim.torch  # noqa: F401 - registers the backend
from zerosim.bench.timings import WORKLOADS, Workload, plain, steps
from zerosim.collectives import ring
from zerosim.comm import Communicator
from zerosim.instruments.resident import keep_freed
from zerosim.scenario import ModelKeys
from zerosim.sharding import split
from zerosim.torch.group import Group
from zerosim.torch.trainers import ddp, fsdp2, zero_redundancy
from zerosim.worlds.objects import gather_objects

CALLS, STEPS, WARM_UP = 50, 3, 2
TRAINED = {
    **{f"MLP of width {width}": replace(WORKLOADS["mlp"], model=ModelKeys(hidden=(width,) * 3))
       for width in (64, 256, 1024)},
    "transformer": WORKLOADS["transformer"],
}
"""The models whose steps are timed."""
COUNTERPARTS = {
    "ddp": ("DDP", "DDP", ddp),
    "zero1": ("Stage I", "ZeroRedundancyOptimizer", zero_redundancy),
    "zero2": ("Stage II", "ZeroRedundancyOptimizer", zero_redundancy),
    "zero3": ("Stage III", "FSDP2", fsdp2),
}
"""Each stage's title, and its counterpart in PyTorch."""


@dataclass(frozen=True)
class Against:
    """Seconds of a task over zerosim, and of its counterpart, a figure for each round."""

    what: str
    seconds: list[float]
    other_seconds: list[float]

    def document(self) -> dict[str, Any]:
        pairs = list(zip(self.seconds, self.other_seconds, strict=True))
        ratios = [one / other for one, other in pairs]
        return {
            "what": self.what, "seconds": statistics.median(self.seconds),
            "other_seconds": statistics.median(self.other_seconds),
            "more_seconds": statistics.median(one - other for one, other in pairs),
            "ratio": statistics.median(ratios), "ratio_range": [min(ratios), max(ratios)],
        }


def time_torch(comm: Communicator, rounds: int) -> list[Against] | None:
    """The figures on rank 0, None on the other rank."""
    torch.set_num_threads(1)
    dist.init_process_group("zerosim")
    ours, gloo = dist.group.WORLD, dist.new_group(backend="gloo")
    alone, _ = dist.new_subgroups(1)
    transformer = TRAINED["transformer"]
    found = [
        *stages_against(comm, rounds, gloo),
        Against("PyTorch's DDP over zerosim, against gloo",
                *times(comm, rounds, [ddp(transformer, ours), ddp(transformer, gloo)])),
        Against("PyTorch's FSDP2 over zerosim, against gloo",
                *times(comm, rounds, [fsdp2(transformer, ours), fsdp2(transformer, gloo)])),
    ]
    for count in (256, 1 << 18):
        through = all_reduce(count, ours)
        for other, of_other in (("gloo", all_reduce(count, gloo)), ("the ring", bare_ring(count, ours))):
            found.append(Against(
                f"all-reduce of {4 * count:,} B, against {other}", *calls(comm, rounds, [through, of_other])))
    found.append(Against("all-reduce of 1,024 B on 1 rank, against the ring", *calls(
        comm, rounds, [all_reduce(256, alone), bare_ring(256, alone)])))
    dist.destroy_process_group()
    return found if comm.rank == 0 else None


def stages_against(comm: Communicator, rounds: int, gloo: Any) -> list[Against]:
    """A step of each stage and model, against its counterpart over gloo; one thread for each rank."""
    keep_freed()
    found = []
    with threadpool_limits(1):
        for model, workload in TRAINED.items():
            for stage, (title, name, trainer) in COUNTERPARTS.items():
                pair = [own_step(comm, stage, workload), trainer(workload, gloo)]
                found.append(Against(f"{model}: {title}, against {name} over gloo",
                                     *calls(comm, rounds, [repeated(each, STEPS) for each in pair], STEPS)))
    return found


def own_step(comm: Communicator, stage: str, workload: Workload) -> Callable[[], object]:
    trained = steps(plain(comm, stage, workload))
    return lambda: next(trained)


def times(comm: Communicator, rounds: int, steps: Sequence[Callable[[], object]]) -> list[list[float]]:
    """Seconds of the slower rank in each round, for each of `steps`, which take turns."""
    found: list[list[float]] = [[] for _ in steps]
    for _ in range(WARM_UP + rounds):
        for seconds, step in zip(found, steps, strict=True):
            dist.barrier()
            began = time.perf_counter()
            step()
            seconds.append(max(gather_objects(comm, time.perf_counter() - began) or [0.0]))
    return [seconds[WARM_UP:] for seconds in found]


def calls(
    comm: Communicator, rounds: int, steps: Sequence[Callable[[], object]], count: int = CALLS
) -> list[list[float]]:
    """The seconds of one call of each, which runs `count` calls in a row, measured as `times` does."""
    return [[seconds / count for seconds in each] for each in times(comm, rounds, steps)]


def repeated(step: Callable[[], object], times: int) -> Callable[[], object]:
    """A function that runs `step` this many times."""

    def several() -> None:
        for _ in range(times):
            step()

    return several


def all_reduce(count: int, group: Any) -> Callable[[], object]:
    """A function that runs `CALLS` all-reduces of `count` numbers."""
    tensor = torch.zeros(count)

    def step() -> None:
        for _ in range(CALLS):
            dist.all_reduce(tensor, group=group)

    return step


def bare_ring(count: int, group: Group) -> Callable[[], object]:
    """A function that runs as many all-reduces by the ring alone, in the channel of the group."""
    array = np.zeros(count, np.float32)

    def step() -> None:
        for _ in range(CALLS):
            ring.all_reduce(group.comm, split(array, group.comm.size))

    return step
