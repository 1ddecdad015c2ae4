"""Parameters that FSDP1, FSDP2 or tensor parallelism has cut.

FSDP1 has flat parameters: which part of a parameter this rank keeps, and where parameters stand in a flat one.
"""

from functools import reduce
from itertools import accumulate
from operator import add
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Shard
from torch.nn.functional import linear
from torch.utils.weak import WeakIdKeyDictionary


class FlatPart(NamedTuple):
    """A rank's part of a whole tensor of `shape`: a slice of it as a vector."""

    shape: tuple[int, ...]
    where: slice


FLAT_PARAM = "_flat_param"
"""The name of every flat parameter in its module."""
PARTS: Any = WeakIdKeyDictionary()
"""The part of each parameter that FSDP1 has sharded."""


class FlatPiece(NamedTuple):
    """A module's parameter, and where it stands in its flat one."""

    module: Any
    name: str
    shape: tuple[int, ...]
    where: slice


def handle_of(module: Any) -> Any:
    """The FSDP1 handle of the flat parameter of one module; None if it has none."""
    return getattr(module, "_handle", None) if type(module).__name__ == "FullyShardedDataParallel" else None


def handles(root: Any) -> list[Any]:
    return [found for found in map(handle_of, root.modules()) if found is not None]


def pieces_of(handle: Any) -> list[FlatPiece]:
    """The parameters of one flat parameter, in order."""
    flat = handle.flat_param
    ends = [*accumulate(flat._numels_with_padding)]
    places = [slice(end - size, end) for end, size, padding in zip(
        ends, flat._numels_with_padding, flat._is_padding_mask, strict=True) if not padding]
    return [FlatPiece(info.module, info.param_name, tuple(shape), where)
            for info, shape, where in zip(flat._param_infos, flat._shapes, places, strict=True)]


def register(root: Any) -> None:
    """Note the parts that this rank keeps of the sharded parameters in `root`."""
    for handle in handles(root):
        flat = handle.flat_param
        if handle.uses_sharded_strategy and flat._params is None:
            size = flat._sharded_size.numel()
            PARTS[flat] = FlatPart((size * handle.world_size,), slice(size * handle.rank, size * (handle.rank + 1)))
        elif handle.uses_sharded_strategy:
            for each, shape, info in zip(flat._params, flat._shapes, flat._shard_param_infos, strict=True):
                PARTS[each] = FlatPart(tuple(shape), slice(
                    info.intra_param_start_idx, info.intra_param_end_idx + 1) if info.in_shard else slice(0, 0))


def restored(root: Any, full: dict[int, Any]) -> dict[int, dict[str, Any]]:
    """Plain parameters for those that are registered in flat ones only, by the module's identity and their name."""
    found: dict[int, dict[str, Any]] = {}
    for handle in handles(root):
        flat = handle.flat_param
        for piece in pieces_of(handle) if flat._params is None else ():
            value = full[id(flat)][piece.where].reshape(piece.shape).clone()
            found.setdefault(id(piece.module), {})[piece.name] = nn.Parameter(value, flat.requires_grad)
        for info in flat._shared_param_infos if flat._params is None else ():
            found.setdefault(id(info.module), {})[info.param_name] = found[id(info.prim_module)][info.prim_param_name]
    return found


def is_whole(tensor: Any) -> bool:
    """Whether a rank keeps all of a parameter."""
    if isinstance(tensor, DTensor):
        return all(each.is_replicate() for each in tensor.placements)
    return tensor not in PARTS


def whole_shape(tensor: Any) -> tuple[int, ...]:
    """The shape of a parameter before it was sharded."""
    return PARTS[tensor].shape if tensor in PARTS else tuple(tensor.shape)


def local(tensor: Any) -> Any:
    """This rank's part of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def local_gradient(parameter: Any) -> Any:
    """This rank's part of a gradient, in the layout of its parameter; None if there is none."""
    found = parameter.grad
    if isinstance(found, DTensor) and found.placements != parameter.placements:
        found = found.redistribute(placements=parameter.placements)
    return None if found is None else local(found).detach()


def part_of(whole: Any, where: Any) -> Any:
    """The view of a whole tensor at a place: slices of its dimensions, or one slice of it as a vector."""
    return whole.reshape(-1)[where] if isinstance(where, slice) else whole[where]


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
