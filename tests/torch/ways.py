"""The ways of training that the checker compares with one process, and models and trainers for all that trains here."""

from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

RATE, CLIP = 0.05, 0.5
ONE_BUCKET = 25 << 20


@dataclass(frozen=True)
class Way:
    """One way to train: a trainer and its options."""

    name: str
    trainer: str
    bucket_bytes: int = ONE_BUCKET
    as_views: bool = False
    """Whether gradients stay views of DDP's buckets: they are then set to zero after a step, and not freed."""
    zero: bool = False
    reshard: bool = True
    param_dtype: Any = None
    reduce_dtype: Any = None
    mesh: bool = False
    clip: bool = False
    micro_batches: int = 1
    syncs_each: bool = False
    """Whether gradients are reduced after every micro-batch, and not once per step."""

    def serves(self, ranks):
        """Whether the way supports this number of ranks: a mesh of two rows needs at least two ranks in each."""
        return not self.mesh or (ranks % 2 == 0 and ranks >= 4)

    def replicas(self):
        return 2 if self.mesh else 1


WAYS = (
    Way("DDP", "ddp"),
    Way("DDP, buckets of 512 B", "ddp", bucket_bytes=512),
    Way("DDP, gradients as views of buckets", "ddp", as_views=True),
    Way("DDP, clipped", "ddp", clip=True),
    Way("DDP, accumulating under no_sync", "ddp", micro_batches=3),
    Way("DDP, accumulating, reduced each time", "ddp", micro_batches=3, syncs_each=True),
    Way("DDP, ZeroRedundancyOptimizer", "ddp", zero=True),
    Way("FSDP2", "fsdp2"),
    Way("FSDP2, reshard_after_forward=False", "fsdp2", reshard=False),
    Way("FSDP2, bfloat16, reduced in float32", "fsdp2", param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
    Way("FSDP2, bfloat16, reduced in bfloat16", "fsdp2", param_dtype=torch.bfloat16),
    Way("FSDP2, clipped", "fsdp2", clip=True),
    Way("FSDP2, accumulating, reduced once", "fsdp2", micro_batches=3),
    Way("FSDP2, accumulating, reduced each time", "fsdp2", micro_batches=3, syncs_each=True),
    Way("FSDP2, HSDP on a mesh of 2 rows", "fsdp2", mesh=True),
)


def way_named(name):
    return next(way for way in WAYS if way.name == name)


def fresh_model():
    """A small model, the same on each call, with sizes that no number of ranks from 2 to 6 divides evenly."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(11, 13), nn.GELU(), nn.Linear(13, 7), nn.Tanh(), nn.Linear(7, 5))


def perceptron(*widths):
    """An MLP, the same on each call."""
    torch.manual_seed(0)
    return nn.Sequential(*[layer for pair in pairwise(widths) for layer in (nn.Linear(*pair), nn.ReLU())][:-1])


def units(model):
    """The parameters of each unit that FSDP2 gathers at once."""
    return [list(layer.parameters()) for layer in model if list(layer.parameters())]


def optimizer_of(parameters):
    return torch.optim.AdamW(parameters, lr=RATE)


def loss_of(model, x, y):
    return nn.functional.cross_entropy(model(x).float(), y)


def batches(step, rank, way):
    """A rank's micro-batches of a step."""
    for number in range(way.micro_batches):
        generator = torch.Generator().manual_seed(1000 * step + 10 * rank + number)
        yield torch.randn(3, 11, generator=generator), torch.randint(0, 5, (3,), generator=generator)


class Trainer:
    """PyTorch's own trainer in one of the ways, on this rank."""

    def __init__(self, way):
        self.way = way
        self.plain = fresh_model()
        self.model = wrapped(self.plain, way)
        parameters = list(self.model.parameters())
        self.optimizer = ZeroRedundancyOptimizer(
            parameters, optimizer_class=torch.optim.AdamW, lr=RATE) if way.zero else optimizer_of(parameters)

    def step(self, number):
        """Train one step, as a script would write it."""
        parts = list(batches(number, dist.get_rank(), self.way))
        for part, (x, y) in enumerate(parts):
            with self._reducing(self.way.syncs_each or part == len(parts) - 1):
                loss_of(self.model, x, y).backward()
        if self.way.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=not self.way.as_views)

    def _reducing(self, reduces):
        if self.way.trainer == "fsdp2":
            self.model.set_requires_gradient_sync(reduces)
        return nullcontext() if reduces or self.way.trainer == "fsdp2" else self.model.no_sync()


def wrapped(model, way):
    """The model under its trainer."""
    if way.trainer == "ddp":
        return DistributedDataParallel(
            model, bucket_cap_mb=None if way.bucket_bytes == ONE_BUCKET else way.bucket_bytes / (1 << 20),
            gradient_as_bucket_view=way.as_views)
    sizes = (way.replicas(), dist.get_world_size() // way.replicas())
    mesh = dist.init_device_mesh("cpu", sizes, mesh_dim_names=("replicate", "shard"))
    return sharded(model, mesh=mesh if way.mesh else mesh["shard"], reshard_after_forward=way.reshard,
                   mp_policy=MixedPrecisionPolicy(param_dtype=way.param_dtype, reduce_dtype=way.reduce_dtype))


def sharded(model, **options):
    """The model under FSDP2, a unit for each of its layers that has parameters."""
    for layer in model:
        if list(layer.parameters()):
            fully_shard(layer, **options)
    return fully_shard(model, **options)
