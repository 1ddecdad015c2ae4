"""Steps of DDP and FSDP2 over these collectives and over gloo, in the same processes; all-reduce against the ring."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import zerosim.torch  # noqa: F401 - registers the backend
from zerosim.collectives import ring
from zerosim.comm import Communicator
from zerosim.sharding import split
from zerosim.torch.group import Group
from zerosim.worlds.objects import gather_objects

CALLS, WARM_UP = 50, 2
LAYERS, WIDTH, HEADS, BATCH, TOKENS, VOCABULARY = 4, 256, 8, 8, 128, 65
"""The transformer of `zerosim bench step --model transformer`; the batch is that of each of 2 ranks."""


@dataclass(frozen=True)
class Against:
    """Seconds of something over zerosim, and of what it is set against, a figure for each round."""

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


class Transformer(nn.Module):
    """Tokens to scores of the next token, in GPT-2's shape."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Any) -> Any:
        hidden = self.embedding(tokens) + self.positions(torch.arange(tokens.shape[1]))
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        for block in self.blocks:
            hidden = block(hidden, src_mask=mask, is_causal=True)
        return self.head(hidden.flatten(0, 1))


def time_torch(comm: Communicator, rounds: int) -> list[Against] | None:
    """The figures on rank 0, None on the other rank."""
    torch.set_num_threads(1)
    dist.init_process_group("zerosim")
    ours, gloo = dist.group.WORLD, dist.new_group(backend="gloo")
    alone, _ = dist.new_subgroups(1)
    found = [
        Against("DDP: a step, against gloo", *times(comm, rounds, [ddp(ours), ddp(gloo)])),
        Against("FSDP2: a step, against gloo", *times(comm, rounds, [fsdp2(ours), fsdp2(gloo)])),
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


def calls(comm: Communicator, rounds: int, steps: Sequence[Callable[[], object]]) -> list[list[float]]:
    """The seconds of one call of each, from many of them in a row, measured as `times` does."""
    return [[seconds / CALLS for seconds in each] for each in times(comm, rounds, steps)]


def ddp(group: Any) -> Callable[[], object]:
    return training(DistributedDataParallel(fresh(), process_group=group))


def fsdp2(group: Any) -> Callable[[], object]:
    """A step of FSDP2, which adds gradients and divides later, as gloo has no average."""
    model, mesh = fresh(), DeviceMesh.from_group(group, "cpu")
    apply: Callable[..., Any] = fully_shard
    for block in [*model.blocks, model]:
        apply(block, mesh=mesh).set_force_sum_reduction_for_comms(True)
    return training(model)


def fresh() -> Any:
    torch.manual_seed(0)
    return Transformer()


def training(model: Any) -> Callable[[], object]:
    """A step of it."""
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(0, VOCABULARY, (BATCH, TOKENS + 1))

    def step() -> None:
        scores = model(tokens[:, :-1])
        nn.functional.cross_entropy(scores, tokens[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def all_reduce(count: int, group: Any) -> Callable[[], object]:
    """Many of them, of so many numbers."""
    tensor = torch.zeros(count)

    def step() -> None:
        for _ in range(CALLS):
            dist.all_reduce(tensor, group=group)

    return step


def bare_ring(count: int, group: Group) -> Callable[[], object]:
    """Many all-reduces by the ring alone, in the channel of the group."""
    array = np.zeros(count, np.float32)

    def step() -> None:
        for _ in range(CALLS):
            ring.all_reduce(group.comm, split(array, group.comm.size))

    return step
