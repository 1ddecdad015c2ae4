"""Which trainer a model has, which ranks share its gradients, and what of it is not modelled."""

import sys
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from zerosim.torch.verdicts.rounding import unit_roundoff
from zerosim.torch.verdicts.split import cut_by_tensor, handles, row_of, units

NARROWING = {"fp16_compress_hook": torch.float16, "bf16_compress_hook": torch.bfloat16}
"""DDP's hooks that reduce in a different dtype, and add as usual."""


@dataclass
class TrainerFacts:
    """A model's trainer, before anything is compared."""

    name: str
    group: list[int]
    """The ranks over which it reduces gradients."""
    hook: str = ""
    """The communication hook of DDP."""
    reduced: Any = None
    """The dtype of the reduction, if a hook narrows it."""
    divided_by: float | None = None
    """FSDP2's gradient divide factor, if the script has set one."""
    obstacle: str = ""
    """Why the gradients of this trainer are not judged."""
    row: list[int] = field(default_factory=list)
    """The ranks of tensor parallelism that hold parts of the same layers, and share samples, with this one."""


def trainer_of(root: Any, world: list[int]) -> TrainerFacts:
    """The trainer of the outermost wrapper in `root`, and its tensor parallelism."""
    found, rows = wrapper_of(root, world), [row_of(each) for *_, each in cut_by_tensor(root)]
    if rows:
        found.group, found.row = world, rows[0]
        found.name = "tensor parallelism" if found.name == "no trainer" else f"{found.name} with tensor parallelism"
    if any(row != found.row for row in rows):
        found.obstacle = "tensor parallelism on several meshes"
    return found


def wrapper_of(root: Any, world: list[int]) -> TrainerFacts:
    for module in root.modules():
        if type(module).__name__ == "DeepSpeedEngine":
            obstacle = "DeepSpeed's fp16" if module.fp16_enabled() else ""
            if module.zero_round_robin_gradients() and module.zero_optimization_stage() in (1, 2):
                obstacle = "under round_robin_gradients DeepSpeed tells the gradients of other parameters"
            if module.bfloat16_enabled() and (0, 19) <= deepspeed_version() < REDUCED_IN_BFLOAT16:
                obstacle = "this DeepSpeed tells gradients in bfloat16 before they are reduced; 0.19.8 is judged"
            return TrainerFacts("DeepSpeed", world, obstacle=obstacle)
        if type(module).__name__ == "FullyShardedDataParallel":
            return of_fsdp1(root, module, world)
        if isinstance(module, nn.parallel.DistributedDataParallel):
            return of_ddp(module)
        if hasattr(module, "set_requires_gradient_sync"):
            return of_fsdp2(root, module, world)
    return TrainerFacts("no trainer", world)


REDUCED_IN_BFLOAT16 = (0, 19, 8)
"""The first DeepSpeed after 0.18 whose `safe_get_full_grad` was seen to return reduced gradients in bfloat16."""


def deepspeed_version() -> tuple[int, ...]:
    """The version of the DeepSpeed that the script has imported."""
    return tuple(int(part) for part in sys.modules["deepspeed"].__version__.split(".")[:3] if part.isdigit())


def deepspeed_weights(named: dict[str, Any]) -> dict[str, Any]:
    """The full weights of a model under ZeRO Stage III, by DeepSpeed's own function."""
    deepspeed = sys.modules["deepspeed.utils"]
    return {name: deepspeed.safe_get_full_fp32_param(each).to(each.dtype) if hasattr(each, "ds_id") else each.detach()
            for name, each in named.items()}


def deepspeed_gradients(named: dict[str, Any]) -> dict[str, Any]:
    """The averaged gradients before `engine.step()`, by DeepSpeed's own function."""
    deepspeed = sys.modules["deepspeed.utils"]
    return {name: each.grad if each.grad is not None else deepspeed.safe_get_full_grad(each)
            for name, each in named.items()}


def ranks_of(group: Any) -> list[int]:
    return list(dist.get_process_group_ranks(group))


def of_ddp(module: Any) -> TrainerFacts:
    found = TrainerFacts("DDP", ranks_of(module.process_group))
    hooks = [getattr(hook, "__name__", type(hook).__name__) for hook, _ in getattr(module, "_comm_hooks", ())]
    found.hook = hooks[0] if hooks else ""
    found.reduced = NARROWING.get(found.hook)
    if found.hook and getattr(module._comm_hooks[0][0], "__module__", "").startswith("torch.") and (
            found.hook not in (*NARROWING, "allreduce_hook", "noop_hook")):
        found.obstacle = f"the communication hook {found.hook} may be lossy"
    if module.mixed_precision is not None:
        found.obstacle = "DDP's own mixed precision"
    return found


def of_fsdp1(root: Any, first: Any, world: list[int]) -> TrainerFacts:
    found = TrainerFacts("FSDP1", ranks_of(first.process_group))
    if "HYBRID" in first.sharding_strategy.name:
        found.group = world if first._device_mesh is None else sorted(first._device_mesh.mesh.flatten().tolist())
    reduced = [handle._reduce_dtype for handle in handles(root)]
    found.reduced = max(reduced, key=unit_roundoff) if reduced else None
    if first._comm_hook is not None:
        found.obstacle = "a communication hook of FSDP1"
    return found


def of_fsdp2(root: Any, first: Any, world: list[int]) -> TrainerFacts:
    groups = units(root)
    meshes = {group.mesh_info.mesh for group in groups}
    if not groups or len(meshes) != 1:
        return TrainerFacts("FSDP2", world, obstacle="FSDP2 on several meshes")
    mesh = meshes.pop()
    found = TrainerFacts("FSDP2" if mesh.ndim == 1 else "HSDP", sorted(mesh.mesh.flatten().tolist()))
    factors = {group.gradient_divide_factor for group in groups} - {None}
    found.divided_by = float(min(factors)) if factors else None
    for group in groups:
        if group._all_reduce_hook is not None:
            found.obstacle = "an all-reduce hook of FSDP2"
    return found
