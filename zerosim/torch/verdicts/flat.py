"""FSDP1's flat parameters: which part of a parameter this rank keeps, and where parameters stand in a flat one."""

from itertools import accumulate
from typing import Any, NamedTuple

from torch import nn
from torch.distributed.tensor import DTensor
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


def part_of(whole: Any, where: Any) -> Any:
    """The view of a whole tensor at a place: slices of its dimensions, or one slice of it as a vector."""
    return whole.reshape(-1)[where] if isinstance(where, slice) else whole[where]
