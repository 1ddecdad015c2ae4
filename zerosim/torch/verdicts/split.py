"""Modules whose parameters FSDP2 or tensor parallelism has cut."""

from functools import reduce
from operator import add
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Shard
from torch.nn.functional import linear


def groups_of(module: Any) -> list[Any]:
    """FSDP2's groups of the parameters of one module; earlier versions of PyTorch have at most one."""
    state = module._get_fsdp_state()
    return list(getattr(state, "_fsdp_param_groups", None) or filter(None, [getattr(state, "_fsdp_param_group", None)]))


def units(root: Any) -> list[Any]:
    """FSDP2's groups of parameters in `root`."""
    return [group for module in root.modules() if hasattr(module, "_get_fsdp_state")
            for group in groups_of(module)]


def cut_by_tensor(root: Any) -> list[tuple[Any, str, Any]]:
    """The parameters that tensor parallelism has made DTensors: module, name, parameter."""
    of_data = {id(each.sharded_param) for group in units(root) for each in group.fsdp_params if not each.is_dtensor}
    return [(module, name, each) for module in root.modules() for name, each in module._parameters.items()
            if isinstance(each, DTensor) and id(each) not in of_data]


def row_of(parameter: Any) -> list[int]:
    """The ranks that hold the parts of a cut parameter, with this one."""
    mesh = parameter.device_mesh
    return sorted(dist.get_process_group_ranks(mesh.get_group(mesh.ndim - 1)))


def compute_in_parts(made: Any, weight: Any) -> None:
    """Have a plain layer compute as the ranks that hold the parts of `weight` do, with a result of the same bits.

    A Linear's parts by columns are put side by side. Its parts by rows are added; for two ranks the order does not
    matter. A layer of which all ranks have all weights computes parts of the sequence.
    """
    layout, count, whole = weight.placements[-1], weight.device_mesh.size(-1), type(made).forward

    def in_sequence(x: Any) -> Any:
        return torch.cat([whole(made, each) for each in x.chunk(count, 1)], 1) if x.dim() > 2 else whole(made, x)

    def forward(x: Any) -> Any:
        x = x.view_as(x)  # its gradient is complete before that of other modules is added
        if layout.dim == 0:
            biases = [None] * count if made.bias is None else made.bias.chunk(count)
            return torch.cat([linear(x, part, bias) for part, bias in zip(
                made.weight.chunk(count), biases, strict=True)], -1)
        bias = None if made.bias is None else made.bias / count
        return reduce(add, [linear(each.contiguous(), part.contiguous(), bias) for each, part in zip(
            x.chunk(count, -1), made.weight.chunk(count, 1), strict=True)])

    made.forward = forward if isinstance(layout, Shard) else in_sequence
