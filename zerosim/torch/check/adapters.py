"""What is asked of trainers: FSDP's parameters, DeepSpeed's gradients, and over which ranks each of them reduces."""

import sys
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any

import torch.distributed as dist

from zerosim.torch.check.record import Facts, Key


class Flat:
    """A flat parameter of FSDP1: the names and shapes of its parameters, the bounds of each in it, and its ranks."""

    def __init__(self, handle: Any, paths: Any) -> None:
        flat = handle.flat_param
        ends = [*accumulate(flat._numels_with_padding)]
        bounds = [(end - size, end) for end, size, padding in zip(
            ends, flat._numels_with_padding, flat._is_padding_mask, strict=True) if not padding]
        self.names = [f"{paths[info.module]}.{info.param_name}".lstrip(".") for info in flat._param_infos]
        self.bounds = dict(zip(self.names, bounds, strict=True))
        self.shapes = dict(zip(self.names, map(tuple, flat._shapes), strict=True))
        self.ranks: list[int] = dist.get_process_group_ranks(handle.process_group)
        self.size = flat._unpadded_unsharded_size.numel()
        shard = flat._sharded_size.numel() if handle.uses_sharded_strategy else self.size
        self.shard = range(shard * handle.rank, shard * (handle.rank + 1)) if shard < self.size else range(self.size)

    def part(self, name: str, within: range) -> tuple[tuple[int, ...], Key, slice]:
        """Shape and place of a parameter's elements within a range of the flat one, and their place in that range."""
        first, last = self.bounds[name]
        low = max(first, within.start)
        high = max(min(last, within.stop), low)
        at = min(low, last) - first
        return (last - first,), ((at, at + high - low),), slice(low - within.start, high - within.start)

    def __call__(self, values: Any) -> Iterator[tuple[str, Any, tuple[int, ...], Key]]:
        """The pieces of a gathered flat tensor, or of this rank's shard of one."""
        within = range(self.size) if values.numel() >= self.size else self.shard
        for name in self.names:
            shape, key, at = self.part(name, within)
            yield name, values.reshape(-1)[at], shape, key


def flat_pieces(module: Any, paths: Any) -> Iterator[tuple[Any, Flat, list[tuple[Any, Any]]]]:
    """The flat parameter of one module of FSDP1, its pieces, and the places of the parameters that view its shard."""
    handle = getattr(module, "_handle", None) if type(module).__name__ == "FullyShardedDataParallel" else None
    if handle is None:
        return
    for path, submodule in module.named_modules():
        plain = path.replace("_fsdp_wrapped_module", "").replace("_checkpoint_wrapped_module", "")
        paths.setdefault(submodule, ".".join(filter(None, [paths[module], *plain.split(".")])))
    flat = Flat(handle, paths)
    views = handle.flat_param._params or ()
    yield handle.flat_param, flat, [
        (view, (name, *flat.part(name, flat.shard)[:2])) for view, name in zip(views, flat.names, strict=False)]


def gathered_parameters(modules: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """FSDP2's parameters of these modules: each as the optimizer has it, and as it is gathered for a forward."""
    for module in modules:
        state = module._get_fsdp_state() if hasattr(module, "_get_fsdp_state") else None
        groups = getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]
        for group in filter(None, groups):
            yield from ((parameter.sharded_param, parameter._unsharded_param) for parameter in group.fsdp_params
                        if hasattr(parameter, "_unsharded_param"))


def of_wrapper(trainer: Any, module: Any, kwargs: dict[str, Any]) -> tuple[str, list[int], Any, bool]:
    """A trainer's name and ranks, the dtype in which it reduces, and whether it shards what ranks have initialised."""
    name = type(trainer).__name__ if trainer is not None else "FSDP2"
    policy = kwargs.get("mixed_precision") or kwargs.get("mp_policy")
    reduced = policy and (policy.reduce_dtype or policy.param_dtype)
    if name == "DistributedDataParallel":
        return name, list(dist.get_process_group_ranks(trainer.process_group)), reduced, False
    mesh = kwargs.get("mesh") or kwargs.get("device_mesh")
    group = sorted(mesh.mesh.flatten().tolist()) if mesh is not None else list(range(dist.get_world_size()))
    return name, group, reduced, not kwargs.get("sync_module_states")


def of_plan(facts: Facts, args: Any, kwargs: Any) -> None:
    """Note what the plan of `parallelize_module` gives to the ranks of a row and takes from them."""
    plan = kwargs.get("parallelize_plan", args[2] if len(args) > 2 else None)
    for style in plan.values() if isinstance(plan, dict) else [plan]:
        inputs, outputs = (layouts if isinstance(layouts, list | tuple) else [layouts] for layouts in (
            getattr(style, "input_layouts", None), getattr(style, "output_layouts", None)))
        facts.takes_shards |= any(getattr(layout, "dim", None) == 0 for layout in inputs)
        facts.returns_partial |= any(type(layout).__name__ == "Partial" for layout in outputs)


def deepspeed_obstacle(engine: Any) -> str:
    """Why the gradients of an engine of DeepSpeed cannot be judged; empty for anything else."""
    if type(engine).__name__ != "DeepSpeedEngine":
        return ""
    version = tuple(int(number) for number in sys.modules["deepspeed"].__version__.split(".")[:3] if number.isdigit())
    if engine.fp16_enabled():
        return "DeepSpeed's fp16"
    if engine.zero_round_robin_gradients() and engine.zero_optimization_stage() in (1, 2):
        return "under round_robin_gradients DeepSpeed tells the gradients of other parameters"
    if engine.bfloat16_enabled() and (0, 19) <= version < (0, 19, 8):
        return "this DeepSpeed tells gradients in bfloat16 before they are reduced; 0.19.8 is judged"
    return ""


def deepspeed_gradient(parameter: Any) -> Any:
    """The reduced gradient before `engine.step()`, by DeepSpeed's own function."""
    return sys.modules["deepspeed.utils"].safe_get_full_grad(parameter)
