"""The gradient to the bit, where the order of addition is declared: DDP, FSDP2 and HSDP over zerosim's ring.

The orders are those of `zerosim.torch.adding`, here for one parameter at a time, so that no rank keeps the gradients of
all others. They are applied to gradients that were computed again.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard

from zerosim.allocation import Array
from zerosim.torch.adding import all_reduced, over_mesh
from zerosim.torch.arrays import flat
from zerosim.torch.verdicts.gradients import place
from zerosim.torch.verdicts.session import Tracked
from zerosim.torch.verdicts.split import units
from zerosim.torch.verdicts.trainers import TrainerFacts

Offsets = dict[str, tuple[int, int]]
"""Where each parameter begins in the vector that is reduced with it, and the length of that vector."""


@dataclass
class DeclaredSum:
    """The declared order of one model's reduction in this step."""

    trainer: TrainerFacts
    places: Offsets
    factor: float

    def expected(self, name: str, brought: list[Any], parameter: Any) -> Any:
        """This rank's part of the gradient of `parameter`, or None if its order is not declared."""
        if name not in self.places:
            return None
        if isinstance(parameter, DTensor):
            found = self._of_shards(name, brought, parameter)
        else:
            shares = [flat(each.mul(1.0 / len(brought)).reshape(-1), "checking") for each in brought]
            found = torch.from_numpy(wide(all_reduced(shares, *self.places[name]))).reshape(parameter.shape)
        return None if found is None else found * self.factor

    def _of_shards(self, name: str, brought: list[Any], parameter: Any) -> Any:
        mesh, layout = parameter.device_mesh, parameter.placements
        if layout[-1] != Shard(0) or any(each != Replicate() for each in layout[:-1]) or mesh.ndim > 2:
            return None
        where, rows = place(parameter), mesh.mesh.reshape(-1, mesh.mesh.shape[-1]).tolist()
        parts = [[flat(brought[self.trainer.group.index(rank)][where].contiguous().reshape(-1), "checking")
                  for rank in row] for row in rows]
        total = over_mesh(parts, mesh.get_local_rank(mesh.ndim - 1), *self.places[name])
        return torch.from_numpy(wide(total)).reshape(parameter.to_local().shape)


def wide(found: Array) -> Array:
    """A narrow dtype as float32, without rounding."""
    return found if found.dtype == np.float64 else found.astype(np.float32)


def declared(model: Tracked, trainer: TrainerFacts, factor: float, most: int, ready: list[str]) -> DeclaredSum | None:
    """The declared order of the present step; None if there is none.

    `ready` are the parameters in the order in which the first backward completed them on the group's first rank.
    """
    reduced = [call.synchronized for call in sorted(model.calls, key=lambda call: call.backward) if call.backward]
    if trainer.hook or trainer.divided_by is not None or math.frexp(factor)[0] != 0.5 or any(
            reduced[: -1] if most > 1 else ()):
        return None
    if trainer.name == "DDP":
        places = of_buckets(model, ready, len(trainer.group))
    elif trainer.name in ("FSDP2", "HSDP"):
        places = of_units(model)
    else:
        return None
    return DeclaredSum(trainer, places, factor)


def of_buckets(model: Tracked, ready: list[str], ranks: int) -> Offsets:
    """DDP's buckets: at first one with all parameters, then by the order in which gradients become ready."""
    ddp = next(each for each in model.root.modules() if isinstance(each, nn.parallel.DistributedDataParallel))
    named = {name: each for name, each in model.parameters().items() if each.requires_grad}
    powers = ranks & (ranks - 1) == 0
    if ddp.find_unused_parameters or ddp.static_graph or len({each.dtype for each in named.values()}) != 1 or (
            ddp.gradient_as_bucket_view and not powers) or not set(ready) <= set(named):
        return {}
    names = list(named)
    buckets = [list(range(len(names)))]
    if model.reductions > 1:
        if len(ready) != len(names):
            return {}
        cap = ddp.bucket_bytes_cap
        first = dist._DEFAULT_FIRST_BUCKET_BYTES if ddp.bucket_bytes_cap_default else cap
        order = [names.index(name) for name in ready]
        buckets, _ = dist._compute_bucket_assignment_by_size(
            [named[name] for name in ready], [first, cap], [False] * len(ready), order)
    places: Offsets = {}
    for bucket in buckets:
        length, start = sum(named[names[number]].numel() for number in bucket), 0
        for number in bucket:
            places[names[number]] = (start, length)
            start += named[names[number]].numel()
    return places


def of_units(model: Tracked) -> Offsets:
    """FSDP2's units: the pieces of their parameters, padded to equal rows, one after another."""
    places: Offsets = {}
    names = {id(each): name for name, each in model.parameters().items()}
    for group in units(model.root):
        if group._reduce_dtype == torch.float16 or group.force_sum_reduction_for_comms:
            continue
        trained = [each for each in group.fsdp_params if each.sharded_param.requires_grad]
        lengths = [each.padded_sharded_param_size.numel() for each in trained]
        for number, each in enumerate(trained):
            if id(each.sharded_param) in names:
                places[names[id(each.sharded_param)]] = (sum(lengths[:number]), sum(lengths))
    return places
