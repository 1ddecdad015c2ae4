"""The script's own model without its trainer: one process, full weights.

`unwrapped` copies a module, without DDP, FSDP, `torch.compile`'s wrapper and the hooks that trainers have registered.
A `Reference` holds such a copy, loads the weights that the script has now, and computes recorded calls again.
"""

import copy
import hashlib
import random
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from types import MethodType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from zerosim.torch.verdicts.split import (
    FLAT_PARAM,
    compute_in_parts,
    cut_by_tensor,
    groups_of,
    handle_of,
    is_whole,
    local,
    pieces_of,
    restored,
    whole_shape,
)

TRANSPARENT = ("module", "_orig_mod", "_fsdp_wrapped_module", "_forward_module")
"""The names under which wrappers keep the module that they wrap."""
WRAPPERS = ("DistributedDataParallel", "OptimizedModule", "FullyShardedDataParallel", "DeepSpeedEngine",
            "_FabricModule")
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
OF_TRAINERS = ("torch.distributed", "accelerate", "deepspeed", "lightning", "zerosim")
SIMPLE = (bool, int, float, str, type(None))


def inner(module: Any) -> Any:
    """The module below all wrappers around `module`."""
    while type(module).__name__ in WRAPPERS:
        module = next(module._modules[name] for name in TRANSPARENT if name in module._modules)
    return module


def plain_name(name: str, prefixes: tuple[str, ...]) -> str:
    """A parameter's name without the wrappers' parts; `prefixes` are the paths of wrapped modules, longest first.

    >>> plain_name("net.module.0.weight", ("net.module.",))
    'net.0.weight'
    """
    for prefix in prefixes:
        if name.startswith(prefix):
            name = prefix.rstrip(".").rpartition(".")[0] + "." + name[len(prefix):]
    return name.lstrip(".")


def prefixes_of(root: Any) -> tuple[str, ...]:
    """The paths of the modules directly below wrappers in `root`, longest first."""
    found = []
    for path, module in root.named_modules():
        if type(module).__name__ in WRAPPERS:
            found += [f"{path}.{name}.".lstrip(".") for name in TRANSPARENT if name in module._modules]
    return tuple(sorted(found, key=len, reverse=True))


def unwrapped(module: Any, memo: dict[int, Any], full: dict[int, Any], flat: dict[int, dict[str, Any]]) -> Any:
    """A copy of `module` without wrappers; `full` has the full tensor of each sharded parameter by its identity.

    `flat` has the parameters that stand in flat ones, by their module's identity and their name.
    """
    module = inner(module)
    if id(module) in memo:
        return memo[id(module)]
    kind: Any = type(module)
    if isinstance(module, FSDPModule):
        kind = kind.__mro__[2]
    made = memo[id(module)] = object.__new__(kind)
    own = vars(module)
    for key in HOOKS:
        hooks = own.get(key) or {}
        vars(made)[key] = OrderedDict((number, hook) for number, hook in hooks.items() if not of_trainer(hook))
    vars(made)["_parameters"] = {
        name: None if each is None else parameter(each, memo, full) for name, each in module._parameters.items()
        if name != FLAT_PARAM} | flat.get(id(module), {})
    vars(made)["_buffers"] = {name: None if each is None else copied(each, memo)
                              for name, each in module._buffers.items()}
    vars(made)["_modules"] = {name: None if each is None else unwrapped(each, memo, full, flat)
                              for name, each in module._modules.items()}
    for key, value in own.items():
        if key == "_compiled_call_impl":
            vars(made)[key] = None
        elif key not in vars(made) and key not in (FLAT_PARAM, *flat.get(id(module), ())):
            vars(made)[key] = copied(value, memo)
    return made


def of_trainer(hook: Any) -> bool:
    return str(getattr(getattr(hook, "func", hook), "__module__", "")).startswith(OF_TRAINERS)


def parameter(each: Any, memo: dict[int, Any], full: dict[int, Any]) -> Any:
    """A plain parameter with the value of `each`; a tied one is made once."""
    if id(each) not in memo:
        value = full[id(each)] if id(each) in full else each.detach().clone()
        made = memo[id(each)] = nn.Parameter(value, requires_grad=each.requires_grad)
        for hook in (each._backward_hooks or {}).values() if is_whole(each) else ():
            if not of_trainer(hook):
                made.register_hook(hook)
    return memo[id(each)]


def copied(value: Any, memo: dict[int, Any]) -> Any:
    """A deep copy; what cannot be copied, such as a process group, is shared."""
    if isinstance(value, MethodType) and id(value.__self__) in memo:
        return MethodType(value.__func__, memo[id(value.__self__)])
    if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter):
        return value.detach().clone()
    try:
        return copy.deepcopy(value, memo)
    except Exception:
        return value


def tensors_in(value: Any, depth: int = 0) -> Iterator[Any]:
    """The tensors in nested containers, dataclasses and other objects with attributes, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from tensors_in(each, depth + 1)
    elif isinstance(value, list | tuple | set):
        for each in value:
            yield from tensors_in(each, depth + 1)
    elif is_dataclass(value) and not isinstance(value, type):
        for each in fields(value):
            yield from tensors_in(getattr(value, each.name), depth + 1)
    elif hasattr(value, "__dict__") and depth < 4 and not isinstance(value, nn.Module | type):
        for each in vars(value).values():
            yield from tensors_in(each, depth + 1)


def kept(value: Any) -> Any:
    """`value` with all tensors in it cloned and detached; leaves other objects as they are."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if isinstance(value, dict) and type(value) is dict:
        return {key: kept(each) for key, each in value.items()}
    if isinstance(value, list) or type(value) is tuple:
        return type(value)(kept(each) for each in value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(kept(each) for each in value))
    try:
        return copy.deepcopy(value) if any(True for _ in tensors_in(value)) else value
    except Exception:
        return value


@dataclass
class Chances:
    """The states of all random number generators on which a forward may depend."""

    cpu: Any = field(default_factory=torch.get_rng_state)
    devices: Any = field(
        default_factory=lambda: torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None)
    python: Any = field(default_factory=random.getstate)
    numpy: Any = field(default_factory=np.random.get_state)

    def restore(self) -> None:
        torch.set_rng_state(self.cpu)
        if self.devices is not None:
            torch.cuda.set_rng_state_all(self.devices)
        random.setstate(self.python)
        np.random.set_state(self.numpy)


@dataclass(eq=False)
class ForwardCall:
    """One recorded forward: its inputs, and, once backward has run, the gradients of its outputs."""

    path: str
    args: Any
    kwargs: Any
    chances: Chances
    autocast: tuple[tuple[str, bool, Any], ...]
    buffers: dict[str, Any]
    attributes: dict[str, dict[str, Any]]
    line: str
    outputs: list[Any] = field(default_factory=list)
    gradients: dict[int, Any] = field(default_factory=dict)
    backward: int = 0
    """The number of the backward that reached it; 0 if none has."""
    backward_line: str = ""
    synchronized: bool = True
    digest: str = ""
    version: int = 0
    """A number that changes whenever a weight is changed in place."""
    scaled: bool = True
    """Whether the loss was multiplied or divided before backward."""


def attributes_of(module: Any) -> dict[str, Any]:
    return {key: value for key, value in vars(module).items() if isinstance(value, SIMPLE) and key[:1] != "_"}


class FullModel:
    """A copy of `root` on full weights. `policies` has the mixed precision of each FSDP2 module by its path."""

    def __init__(self, root: Any, full: dict[int, Any]) -> None:
        self.prefixes = prefixes_of(root)
        self.module = unwrapped(root, {}, full, restored(root, full))
        self.modules = dict(self.module.named_modules(remove_duplicate=False))
        self.names = [name for name, _ in self.module.named_parameters()]
        self.parameters = dict(self.module.named_parameters())
        self.owners = dict(self.module.named_parameters(remove_duplicate=False))
        self.narrow: dict[str, Any] = {}
        self.accumulated: dict[str, Any] = {}
        """The dtype in which micro-batches are added, where it is not that of the gradient."""
        self.compiled = any(type(each).__name__ == "OptimizedModule" or each._compiled_call_impl is not None
                            for each in root.modules())
        self.cut: dict[str, int] = {}
        """The modules with layers that tensor parallelism has cut, and into how many parts."""
        self.whole_heads = False
        """Whether such a module has as many heads as all ranks together, not as the script has told this one."""
        self.pieces: dict[str, tuple[str, slice, int]] = {}
        """The flat parameter of each of its parameters, its place in it, and the length of the flat one."""
        paths = {id(inner(each)): plain_name(f"{name}.", self.prefixes) for name, each in root.named_modules()}
        for path, module in root.named_modules():
            if isinstance(module, FSDPModule):
                self._follow(plain_name(path, self.prefixes), module)
            elif handle_of(module) is not None:
                self._follow_flat(plain_name(path + ".", self.prefixes).rstrip("."), module, root, paths)
        for module, name, each in cut_by_tensor(root):
            path = paths[id(module)].rstrip(".")
            made = self.modules[path]
            if name == "weight" and not isinstance(made, nn.Embedding):
                compute_in_parts(made, each)
                self.cut[path.rpartition(".")[0]] = each.device_mesh.size(-1)

    def _follow_flat(self, path: str, module: Any, root: Any, paths: dict[int, str]) -> None:
        """Cast parameters and inputs as FSDP1 does for this module, and note where its parameters stand."""
        handle, policy = module._handle, module.mixed_precision
        for piece in pieces_of(handle):
            name = paths[id(piece.module)].lstrip(".") + piece.name
            if handle._fwd_bwd_param_dtype != self.parameters[name].dtype:
                self.narrow[name] = handle._fwd_bwd_param_dtype
            if handle.flat_param._params is None:
                flat = next(plain_name(key, self.prefixes) for key, each in root.named_parameters()
                            if each is handle.flat_param)
                self.pieces[name] = flat, piece.where, whole_shape(handle.flat_param)[0]
                self.accumulated[flat] = handle._fwd_bwd_param_dtype
        if policy.param_dtype is not None and (
                policy.cast_root_forward_inputs if module._is_root else policy.cast_forward_inputs):
            cast_inputs(self.modules[path], policy.param_dtype)

    def _follow(self, path: str, module: Any) -> None:
        """Cast parameters, inputs and outputs as FSDP2 does for this module."""
        state = module._get_fsdp_state()
        policy, made = state._mp_policy, self.modules[path]
        for group in groups_of(module):
            for each in group.fsdp_params:
                name = plain_name(each._param_fqn or "", self.prefixes)
                first = next((key for key, value in self.parameters.items() if value is self.owners.get(name)), None)
                if first is not None and policy.param_dtype not in (None, self.parameters[first].dtype):
                    self.narrow[first] = policy.param_dtype
                if first is not None and policy.reduce_dtype is not None:
                    self.accumulated[first] = policy.reduce_dtype
        if policy.cast_forward_inputs and policy.param_dtype is not None:
            cast_inputs(made, policy.param_dtype)
        if policy.output_dtype is not None:
            made.register_forward_hook(lambda _, args, output: cast(output, policy.output_dtype))

    def parameter_at(self, name: str, index: int) -> str:
        """The parameter of the model to which an element of the script's parameter `name` belongs."""
        return next((own for own, (flat, where, _) in self.pieces.items()
                     if flat == name and where.start <= index < where.stop), name)

    def load(self, weights: dict[str, Any]) -> None:
        """Take the full weights of the script by name."""
        with torch.no_grad():
            for name, each in self.parameters.items():
                if name in self.pieces:
                    flat, where, _ = self.pieces[name]
                    each.copy_(weights[flat][where].view_as(each))
                else:
                    each.copy_(weights[name])

    def gradients(self) -> dict[str, Any]:
        """The gradients by the names of the script's parameters; those in a flat one as one vector."""
        found: dict[str, Any] = {}
        for name, each in self.parameters.items():
            if name not in self.pieces and each.grad is not None:
                found[name] = each.grad
            elif each.grad is not None:
                flat, where, length = self.pieces[name]
                found.setdefault(flat, each.grad.new_zeros(length))[where] = each.grad.reshape(-1)
        return found

    def summed(self, name: str) -> Any:
        """The dtype of the sum of a rank's micro-batches."""
        return self.accumulated.get(name) or self.narrow.get(name) or self.parameters[name].dtype

    @contextmanager
    def computing(self) -> Iterator[None]:
        """A context in which the parameters have the dtypes of their forward."""
        full = {name: self.parameters[name].data for name in self.narrow}
        for name, dtype in self.narrow.items():
            self.parameters[name].data = full[name].to(dtype)
        try:
            yield
        finally:
            for name, data in full.items():
                self.parameters[name].grad = None
                self.parameters[name].data = data

    def forward(self, call: ForwardCall) -> Any:
        """The outputs of a recorded call, computed again."""
        module = self.modules[call.path]
        for path, found in call.attributes.items():
            parts = self.cut.get(path, 1) if self.whole_heads else 1
            self.modules[path].__dict__.update({
                key: value * parts if type(value) is int and "head" in key and "dim" not in key else value
                for key, value in found.items()})
        with torch.no_grad():
            for name, buffer in self.module.named_buffers():
                if name in call.buffers:
                    buffer.copy_(call.buffers[name])
        call.chances.restore()
        args, kwargs = kept(call.args), kept(call.kwargs)
        with casting(call.autocast), torch.enable_grad():
            return module(*args, **kwargs)


def cast(value: Any, dtype: Any) -> Any:
    """`value` with all floating-point tensors in its containers in `dtype`, by FSDP2's own rule."""
    return torch.utils._pytree.tree_map(
        lambda x: x.to(dtype) if isinstance(x, torch.Tensor) and torch.is_floating_point(x) else x, value)


def cast_inputs(module: Any, dtype: Any) -> None:
    module.register_forward_pre_hook(
        lambda _, args, kwargs: (cast(args, dtype), cast(kwargs, dtype)), with_kwargs=True)


@contextmanager
def casting(found: tuple[tuple[str, bool, Any], ...]) -> Iterator[None]:
    """The autocast that the script had."""
    with ExitStack() as stack:
        for device, on, dtype in found:
            stack.enter_context(torch.autocast(device, dtype=dtype, enabled=on))
        yield


def autocast_now() -> tuple[tuple[str, bool, Any], ...]:
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    return tuple((device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in devices)


def plain_bytes(tensor: Any) -> Any:
    """The bytes of a tensor as an array on the CPU."""
    return np.from_dlpack(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8))


WORDS = 512
"""The words of 8 bytes in a row of a digest."""


def digest(tensors: Iterable[Any]) -> str:
    """SHA-256 of shapes, dtypes, and of the XOR of the columns and the sums of the rows of their bytes.

    Tensors that differ in one word have other digests. Hashing all bytes would take four times as long.
    """
    found = hashlib.sha256()
    for each in tensors:
        plain = local(each)
        found.update(f"{tuple(plain.shape)} {plain.dtype}".encode())
        if plain.numel():
            data = plain_bytes(plain)
            whole = len(data) // (8 * WORDS) * 8 * WORDS
            rows = data[:whole].view(np.uint64).reshape(-1, WORDS)
            for part in (np.bitwise_xor.reduce(rows, axis=0), rows.sum(axis=1), data[whole:]) if whole else (data,):
                found.update(part.data)
    return found.hexdigest()


MOST_NODES = 100_000
"""The most operations of a graph that are looked at."""


def nodes_below(tensors: list[Any], edges: set[int]) -> set[Any]:
    """The operations from which `tensors` were computed, without those behind operations numbered in `edges`."""
    seen: set[Any] = set()
    nodes = [each.grad_fn for each in tensors if each.grad_fn is not None]
    while nodes and len(seen) < MOST_NODES:
        node = nodes.pop()
        if node not in seen and node._sequence_nr() not in edges:
            seen.add(node)
            nodes += [below for below, _ in node.next_functions if below is not None]
    return seen


def parameters_among(nodes: set[Any]) -> list[Any]:
    """The parameters in which a graph of these operations ends."""
    found = [getattr(node, "variable", None) for node in nodes]
    return [each for each in found if isinstance(each, nn.Parameter)]
