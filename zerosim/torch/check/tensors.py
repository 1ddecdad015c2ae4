"""Questions about tensors, graphs and frames that no trainer changes."""

import os
import sys
from traceback import walk_stack
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.utils._pytree import tree_leaves

from zerosim.torch.check.record import Key
from zerosim.torch.check.sketch import digest, whole
from zerosim.torch.places import PACKAGES, of_a_library, passes_on

SCALERS = torch.amp.GradScaler, ShardedGradScaler
"""The scalers of losses."""
TRAINERS = tuple(f"{PACKAGES}{name}" for name in (
    "torch/distributed/fsdp", "torch/nn", "torch/distributed/utils", "torch/distributed/tensor/_",
    "torch/distributed/tensor/p", "torch/distributed/optim/zero", "deepspeed", "accelerate"))
"""Files of trainers and of tensor parallelism, which communicate while a forward runs."""
FORWARDING = ("c10d_logger.py", "distributed_c10d.py", "contextlib.py", "_contextlib.py", "check/forward.py",
              "window.py", "tensors.py", "_functional_collectives.py")


def script_line() -> str:
    """The innermost line of the user's code that led here, as file:number; empty if there is none."""
    return next((f"{file.rpartition(os.sep)[2]}:{line}" for frame, line in walk_stack(sys._getframe(1))
                 for file in [frame.f_code.co_filename] if not of_a_library(file) and not passes_on(file)), "")


def calls_itself() -> bool:
    """Whether the script communicates, and not one of its trainers."""
    files = (frame.f_code.co_filename for frame, _ in walk_stack(sys._getframe(1)))
    return not next(file for file in files if not file.endswith(FORWARDING)).startswith(TRAINERS)


def local(tensor: Any) -> Any:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def place_of(tensor: Any) -> Key:
    """The place of this rank's part of a tensor."""
    if not isinstance(tensor, DTensor):
        return whole(tensor.shape)
    shape, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return tuple((start, start + size) for start, size in zip(offset, shape, strict=True))


def digest_of(values: Any, not_parts: bool = False) -> Any:
    """The digest of nested tensors; 0 if none of them has data, or each is a constant."""
    leaves = [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor) and not leaf.is_meta
              and not (isinstance(leaf, DTensor) and not_parts) and leaf.layout is torch.strided]
    tensors = [local(leaf).detach() for leaf in leaves if local(leaf).numel()]
    varied, total = torch.zeros((), dtype=torch.bool), torch.zeros((), dtype=torch.int64)
    for number, tensor in enumerate(tensors):
        if tensor.device != total.device:
            varied, total = varied.to(tensor.device, non_blocking=True), total.to(tensor.device, non_blocking=True)
        varied = varied | (tensor != tensor.reshape(-1)[0]).any()
        total = total + digest(tensor, tensor.shape, whole(tensor.shape)) * (2 * number + 1)
    return torch.where(varied, total, 0)


def sample_of(tensor: Any) -> Any:
    """At most 8,192 elements of a tensor, at equal distances; none of one that is not in one piece."""
    values = local(tensor).detach()
    flat = values.view(-1) if values.is_contiguous() else values.new_zeros(0)
    return flat[:: max(1, flat.numel() // 4096)]


def parameters_of(optimizer: Any) -> list[Any]:
    """The parameters of an optimizer, or of DeepSpeed's engine."""
    if isinstance(optimizer, nn.Module):
        return list(optimizer.parameters())
    return [parameter for group in getattr(optimizer, "param_groups", ()) for parameter in group["params"]]


def settings_of(group: dict[str, Any]) -> dict[str, float]:
    """The settings of an optimizer's group that are numbers; of a pair such as betas there are two."""
    named = {name + str(at) * (len(values) > 1): value for name, values in (
        (name, value if isinstance(value, tuple | list) else [value]) for name, value in group.items()
        if name != "params" and not name.startswith("initial")) for at, value in enumerate(values)}
    return {name: float(value) for name, value in named.items() if not isinstance(value, bool) and (
        isinstance(value, int | float) or (isinstance(value, torch.Tensor) and value.is_cpu and value.numel() == 1))}


def clipped_parameters(args: Any, kwargs: Any) -> list[Any]:
    """The parameters that a call of a function that clips was given; all of a module."""
    given = args[0] if args else kwargs["parameters"]
    return ([given] if isinstance(given, torch.Tensor) else
            list(given.parameters()) if isinstance(given, nn.Module) else list(given))


def below(tensors: list[Any]) -> tuple[list[Any], set[Any]]:
    """The tensors in which the graph of these ends, which will get a gradient, and all nodes of the graph."""
    seen: set[Any] = set()
    leaves, nodes = [], [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    while nodes:
        node = nodes.pop()
        if node not in seen:
            seen.add(node)
            if hasattr(node, "variable"):
                leaves.append(node.variable)
            nodes += [following for following, _ in node.next_functions if following is not None]
    return leaves, seen


def loss_factor(losses: list[Any]) -> float:
    """By what a script has multiplied or divided its loss last; 1 if by nothing, or nothing that is known."""
    node = losses[0].grad_fn if losses else None
    kind = node.name() if node is not None else ""
    if kind not in ("MulBackward0", "DivBackward0"):
        return 1.0
    saved = [getattr(node, name, None) for name in ("_saved_other", "_saved_self")]
    factor = next((float(factor) for factor in saved if isinstance(factor, torch.Tensor) and factor.numel() == 1
                   and factor.is_cpu and not factor.requires_grad), 1.0) or 1.0
    return factor if kind[0] == "M" else 1 / factor
