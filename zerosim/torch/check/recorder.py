"""Records a script while it trains: batches, each backward's gradients before any reduction, clipping, updates.

The gradients are seen by `Tensor.register_hook`, which runs before a gradient is accumulated, so before DDP, FSDP or
DeepSpeed reduce it. The parameters are found by walking the graph below each loss; their names by modules that are
called. Nothing is computed again and no rank waits for another: a rank only writes down what it sees.
"""

import os
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives, fsdp
from torch.distributed.algorithms.join import Join
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves
from torch.utils.data.distributed import DistributedSampler
from torch.utils.weak import WeakIdKeyDictionary

from zerosim.torch.check.adapters import (
    deepspeed_gradient,
    deepspeed_obstacle,
    flat_pieces,
    gathered_parameters,
    of_wrapper,
)
from zerosim.torch.check.record import Batch, Clip, Record, Sketched, Step, Term
from zerosim.torch.check.sketch import Part, digest, sketch, whole
from zerosim.torch.places import PACKAGES, of_a_library, passes_on

Original = Callable[..., Any]
COMMUNICATION = (
    "all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_single", "all_gather_tensor", "all_to_all",
    "all_to_all_single", "reduce_scatter_tensor", "reduce_scatter_single", "reduce_scatter", "broadcast", "send",
    "recv", "batch_isend_irecv")
TRAINERS = tuple(f"{PACKAGES}{each}" for each in (
    "torch/distributed/fsdp", "torch/nn", "torch/distributed/utils", "torch/distributed/tensor/_",
    "torch/distributed/tensor/p", "deepspeed", "accelerate"))
"""Files of trainers and of tensor parallelism, which communicate while a forward runs."""
FORWARDING = ("c10d_logger.py", "distributed_c10d.py", "contextlib.py", "recorder.py")
WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module", "_forward_module", "_checkpoint_wrapped_module")


def script_line() -> str:
    """The innermost line of the user's code that led here, as file:number; empty if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not of_a_library(file) and not passes_on(file):
            return f"{file.rpartition(os.sep)[2]}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def local(tensor: Any) -> Any:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def version_of(tensor: Any) -> int:
    """A number that changes with each change in place, of a distributed tensor or of its local part."""
    return int(tensor._version + local(tensor)._version)


def part_of(tensor: Any) -> Part:
    """The place of this rank's part of a tensor."""
    if not isinstance(tensor, DTensor):
        return whole(tensor.shape)
    shape, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return Part(tuple(tensor.shape), tuple(
        slice(start, start + size) for start, size in zip(offset, shape, strict=True)))


def digest_of(values: Any, not_parts: bool = False) -> int:
    """The digest of nested tensors; 0 if none of them has data."""
    found = [local(each) for each in tree_leaves(values) if isinstance(each, torch.Tensor) and each.numel()
             and not each.is_meta and not (isinstance(each, DTensor) and not_parts)]
    if not any(each.numel() > 1 and (each != each.reshape(-1)[0]).any() for each in found):
        return 0
    return sum(digest(each, whole(each.shape)) * (2 * number + 1) for number, each in enumerate(found)) % 2**64


class Recorder:
    """The record of this rank, while `listening`."""

    def __init__(self, first: int = 1, last: int | None = None) -> None:
        self.first, self.last = first, last
        self.record = Record(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))
        self.names: Any = WeakIdKeyDictionary()
        """The name of each parameter, also of those that FSDP has gathered."""
        self.flat: Any = WeakIdKeyDictionary()
        """The pieces of FSDP1's flat parameters."""
        self.lent: Any = WeakIdKeyDictionary()
        """The gathered parameters among them, whose memory is there in forward and backward only."""
        self.parts: Any = WeakIdKeyDictionary()
        """The place of each parameter that is a view of a flat one."""
        self.hooked: Any = WeakIdKeyDictionary()
        self.paths: Any = WeakIdKeyDictionary()
        self.known: list[str] = []
        self.optimizers: list[Any] = []
        self.updates: dict[int, int] = {}
        self.terms: dict[str, list[Term]] = {}
        self.batches: list[Batch] = []
        self.used: dict[str, tuple[int, str, Any]] = {}
        self.open: dict[int, Step] = {}
        """The present step of each optimizer, as far as it is known before the update."""
        self.present: Any = WeakIdKeyDictionary()
        """The gradients that the last backward has left: their identity and version."""
        self.wrapped: list[tuple[Any, list[tuple[Any, str, int]], list[int]]] = []
        self.reasons: list[str] = []
        self.backwards = self.depth = self.updating = self.wrapping = self.asleep = self.clipping = 0
        self.line = ""
        self.epoch: dict[str, Any] = {}
        """The sampler that has begun an epoch since the last forward."""
        self.scale = 1.0
        self.leaving = ExitStack()

    @property
    def active(self) -> bool:
        step = 1 + max(self.updates.values(), default=0)
        return not self.asleep and self.first <= step and (self.last is None or step <= self.last)

    @contextmanager
    def listening(self) -> Iterator[Record]:
        """A context in which everything that trains is recorded."""
        patches: list[tuple[Any, str, Original]] = [
            (torch.autograd, "backward", self.backward), (torch.autograd, "grad", self.differentiate),
            (torch.optim.Optimizer, "__init__", self.make_optimizer),
            (torch.amp.GradScaler, "scale", self.scaling), (torch.amp.GradScaler, "unscale_", self.unscaling),
            (torch.amp.GradScaler, "step", self.scaled_step), (Join, "__enter__", self.join),
            (DistributedSampler, "__iter__", self.sample), (nn.parallel.DistributedDataParallel, "__init__", self.wrap),
            (fsdp.FullyShardedDataParallel, "__init__", self.wrap),
            *((owner, "fully_shard", self.wrap) for owner in (fsdp, dist.fsdp._fully_shard)),
            (fsdp.FSDPModule, "set_gradient_divide_factor", self.divide),
            (nn.parallel.DistributedDataParallel, "register_comm_hook", self.hook),
            (fsdp.FullyShardedDataParallel, "clip_grad_norm_", self.clip),
            *((owner, name, self.clip) for owner in (nn.utils, nn.utils.clip_grad)
              for name in ("clip_grad_norm_", "clip_grads_with_norm_", "clip_grad_value_") if name in vars(owner)),
            *((owner, name, self.communicate) for owner in (dist, _functional_collectives) for name in COMMUNICATION
              if name in vars(owner)),
        ]
        with ExitStack() as stack:
            self.leaving = stack
            for owner, name, method in patches:
                self.patch(owner, name, method)
            for handle in (register_module_forward_pre_hook(self.before_forward),
                           register_module_forward_hook(self.after_forward, with_kwargs=True, always_call=True),
                           register_optimizer_step_pre_hook(self.before_update),
                           register_optimizer_step_post_hook(self.after_update)):
                stack.callback(handle.remove)
            yield self.record
        for handle in self.hooked.values():
            handle.remove()
        held = {name for optimizer in self.optimizers for each in parameters_of(optimizer)
                for name in self.names_of(each)}
        if held:
            self.record.unheld = [name for name in self.known if name in self.terms and name not in held]
        self.terms.clear()

    def patch(self, owner: Any, name: str, method: Original) -> None:
        """Have calls of `owner.name` become calls of `method(original, …)` until the recorder stops."""
        original = getattr(owner, name)

        @wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            return method(original, *args, **kwargs)

        setattr(owner, name, call)
        self.leaving.callback(setattr, owner, name, original)

    # -- modules

    def before_forward(self, module: Any, args: Any) -> None:
        if torch.compiler.is_compiling() or self.asleep:
            return
        self.depth += 1
        if self.depth == 1 and self.active:
            self.know(module)

    def after_forward(self, module: Any, args: Any, kwargs: Any, output: Any) -> None:
        if torch.compiler.is_compiling() or self.asleep or not self.depth:
            return
        self.depth -= 1
        if not self.active or not torch.is_grad_enabled():
            return
        if isinstance(module, fsdp.FSDPModule):
            self.gathered(module)
        if not self.depth and any(each.requires_grad for each in module.parameters()):
            self.batches.append(Batch(digest_of((args, kwargs)), digest_of(output, not_parts=True), script_line(),
                                      self.epoch))
            self.epoch = {}

    def know(self, root: Any) -> None:
        """Name the parameters of a model that is called."""
        if root in self.paths:
            return
        for path, module in root.named_modules():
            plain = ".".join(each for each in path.split(".") if each not in WRAPPERS)
            self.paths.setdefault(module, plain)
            if type(module).__name__ == "DeepSpeedEngine":
                self.patch(type(module), "step", self.engine_step)
                self.record.trainer, self.record.group = "DeepSpeed", list(range(self.record.size))
            for flat, pieces, parts in flat_pieces(module, self.paths):
                self.flat[flat] = pieces
                self.parts.update(parts)
            if not isinstance(module, nn.modules.batchnorm._BatchNorm) and not self.updates:
                for name, each in module._buffers.items():
                    if each is not None and each.numel():
                        self.record.buffers[f"{self.paths[module]}.{name}".lstrip(".")] = digest_of([each])
        for name, each in root.named_parameters():
            plain = ".".join(part for part in name.split(".") if part not in WRAPPERS)
            self.name(each, plain)

    def name(self, parameter: Any, plain: str) -> None:
        taken = {name for each, name in self.names.items() if each is not parameter}
        while parameter not in self.names and plain in taken:
            plain += "'"
        if parameter not in self.names:
            self.names[parameter] = plain
            self.known.append(plain)

    def gathered(self, module: Any) -> None:
        """Note the weights with which a unit of FSDP2 has computed."""
        for sharded, each in gathered_parameters([module]):
            if sharded in self.names and each.untyped_storage().size() and not isinstance(each, DTensor):
                self.used[self.names[sharded]] = digest(each, whole(each.shape)), script_line(), each.dtype

    # -- gradients

    def pieces(self, parameter: Any, values: Any) -> Iterator[tuple[str, Any, Part]]:
        """The named parts of a parameter's values on this rank; a flat parameter has several."""
        if parameter in self.flat:
            yield from self.flat[parameter](local(values))
        elif parameter in self.parts:
            name, part = self.parts[parameter]
            yield name, values, part
        elif local(values).untyped_storage().size() or not local(values).numel():  # gathered weights may be freed
            yield self.names.get(parameter, "?"), local(values), part_of(values)

    def names_of(self, parameter: Any) -> list[str]:
        if parameter in self.flat:
            return list(self.flat[parameter].names)
        return [self.parts[parameter][0] if parameter in self.parts else self.names.get(parameter, "?")]

    def sketched(self, values: Any, part: Part, whole_values: Any) -> Sketched:
        about = torch.finfo(values.dtype)
        over = isinstance(whole_values, DTensor) and any(each.is_partial() for each in whole_values.placements)
        return Sketched(sketch(values, part).cpu().numpy(), part.key, about.eps / 2, about.tiny, over)

    def backward(self, run: Original, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if not self.active:
            return run(tensors, *args, **kwargs)
        self.backwards, self.line = self.backwards + 1, script_line()
        self.notice_cleared()
        for sharded, each in gathered_parameters(self.paths):
            if each not in self.names and sharded in self.names:
                self.names[each] = self.lent[each] = self.names[sharded]
        for leaf in leaves_below([tensors] if isinstance(tensors, torch.Tensor) else list(tensors)):
            if leaf not in self.hooked and isinstance(leaf, nn.Parameter):
                self.hooked[leaf] = leaf.register_hook(partial(self.arrived, weakref.ref(leaf)))
        found = run(tensors, *args, **kwargs)
        self.note_present()
        return found

    def arrived(self, leaf: "weakref.ref[Any]", gradient: Any) -> None:
        """A gradient that is about to be accumulated."""
        parameter = leaf()
        if not self.active or gradient is None or parameter is None:
            return
        if parameter not in self.names and parameter not in self.flat:
            if not any(each is parameter for optimizer in self.optimizers for each in parameters_of(optimizer)):
                self.record.unknown.append(f"of shape {tuple(parameter.shape)}")
            self.names[parameter] = f"?{len(self.names)}"
        if isinstance(gradient, DTensor):  # FSDP2 computes with plain tensors: only tensor parallelism has these here
            self.record.row = sorted(gradient.device_mesh.mesh.flatten().tolist())
        for name, values, part in self.pieces(parameter, gradient):
            self.terms.setdefault(name, []).append(Term(
                self.sketched(values, part, gradient), self.backwards, self.line, self.version))

    @property
    def version(self) -> int:
        """A number that changes whenever a weight is changed in place."""
        return sum(version_of(each) for optimizer in self.optimizers for each in parameters_of(optimizer))

    def notice_cleared(self) -> None:
        """Mark the terms whose gradient was there after the last backward, and is not any more."""
        for parameter, (gradient, version, _) in list(self.present.items()):
            now = parameter.grad
            gone = now is None or (id(now) == gradient and version_of(now) != version and not local(now).any())
            for name in self.names_of(parameter) if gone else ():
                for term in self.terms.get(name, ()):
                    term.dropped = True
        self.present.clear()

    def note_present(self) -> None:
        for optimizer in self.optimizers if not self.record.trainer == "DeepSpeed" else ():
            for each in parameters_of(optimizer):
                if each.grad is not None:
                    self.present[each] = id(each.grad), version_of(each.grad), local(each.grad).double().sum()

    def differentiate(self, run: Original, *args: Any, **kwargs: Any) -> Any:
        """`torch.autograd.grad` runs the hooks of tensors, and accumulates nothing."""
        self.asleep += 1
        try:
            return run(*args, **kwargs)
        finally:
            self.asleep -= 1

    # -- updates

    def make_optimizer(self, run: Original, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        run(optimizer, *args, **kwargs)
        if not self.asleep:
            self.step_of(optimizer)

    def step_of(self, optimizer: Any) -> Step:
        """The present step of an optimizer."""
        if not any(each is optimizer for each in self.optimizers):
            self.optimizers.append(optimizer)
        number = next(number for number, each in enumerate(self.optimizers) if each is optimizer)
        return self.open.setdefault(number, Step(number, self.updates.get(number, 0) + 1))

    def gradients(self, optimizer: Any) -> dict[str, Sketched]:
        """The gradients that an optimizer sees."""
        found = {}
        for each in parameters_of(optimizer):
            values = each.grad
            if values is None and isinstance(optimizer, nn.Module):
                values = deepspeed_gradient(each)
            if values is not None and values.layout is torch.strided:
                for name, one, part in self.pieces(each, values):
                    found[name] = self.sketched(one, part, values)
        return found

    def before_update(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        self.updating += 1
        if self.updating > 1 or self.asleep:
            return None
        closure = next(filter(callable, (*args[1:], *kwargs.values())), None)
        if closure is None:
            self.see(optimizer)
            return None

        def evaluated() -> Any:
            loss = closure()
            self.see(optimizer)
            self.close(optimizer)
            return loss

        return (tuple(evaluated if each is closure else each for each in args),
                {key: evaluated if each is closure else each for key, each in kwargs.items()})

    def after_update(self, optimizer: Any, *_: Any) -> None:
        self.updating -= 1
        if not self.updating and not self.asleep:
            self.close(optimizer)
            step = self.step_of(optimizer)
            self.updates[step.optimizer] = step.number
            del self.open[step.optimizer]

    def see(self, optimizer: Any) -> None:
        """Write down what an update is about to use."""
        if not self.active:
            return
        step = self.step_of(optimizer)
        step.seen, step.line, own = True, script_line(), [each for each in parameters_of(optimizer) if each not in self.lent]
        step.held = [name for each in own for name in self.names_of(each)]
        step.found = self.gradients(optimizer)
        step.before = step.before or step.found
        step.terms = {name: self.terms[name] for name in step.held if name in self.terms}
        step.batches, step.scale = list(self.batches), self.scale
        step.settings = [{key: value for key, value in group.items() if isinstance(value, float | int | str | tuple)}
                         for group in getattr(optimizer, "param_groups", ())]
        step.reasons = [*self.reasons, *filter(None, [deepspeed_obstacle(optimizer)])]
        if not step.clips:
            self.notice_changed(optimizer)
        for each in self.names:
            for name, values, part in self.pieces(each, each) if each not in self.lent else ():
                narrow = self.used.get(name, (0, "", values.dtype))[2]
                step.weights[name] = part.key, digest(values, part), digest(values.to(narrow), part)
                step.trains[name] = each.requires_grad
        step.used = {name: each[:2] for name, each in self.used.items()}
        if not self.record.steps:
            for module, before, after in self.wrapped:
                kept = after == [digest_of([each]) for each in module.parameters()]
                self.record.wrapped |= {f"{self.paths[owner]}.{name}".lstrip("."): (value, kept)
                                        for owner, name, value in before if owner in self.paths}

    def close(self, optimizer: Any, skipped: bool = False) -> None:
        """End the step of an optimizer; the terms of its parameters are used up."""
        step = self.step_of(optimizer)
        if self.active and (step.seen or skipped):
            step.skipped = skipped
            self.record.steps.append(step)
        for each in parameters_of(optimizer):
            for name in self.names_of(each):
                self.terms.pop(name, None)
        self.batches.clear()
        self.used.clear()
        self.reasons.clear()
        self.scale = 1.0
        self.open[step.optimizer] = Step(step.optimizer, step.number)

    def engine_step(self, run: Original, engine: Any, *args: Any, **kwargs: Any) -> Any:
        """DeepSpeed's engine is its optimizer; those within, of flat partitions, are not followed."""
        if not engine.is_gradient_accumulation_boundary():
            return run(engine, *args, **kwargs)
        self.see(engine)
        self.asleep += 1
        try:
            found = run(engine, *args, **kwargs)
        finally:
            self.asleep -= 1
        self.updating += 1
        self.after_update(engine)
        return found

    # -- scaling and clipping

    def scaling(self, run: Original, scaler: Any, outputs: Any) -> Any:
        found = run(scaler, outputs)
        self.scale = scaler.get_scale() if scaler.is_enabled() else 1.0
        return found

    def unscaling(self, run: Original, scaler: Any, optimizer: Any) -> Any:
        self.notice_changed(optimizer)
        found = run(scaler, optimizer)
        if scaler.is_enabled():
            self.step_of(optimizer).unscaled = True
            self.note_present()
        return found

    def notice_changed(self, optimizer: Any) -> None:
        """Note whether gradients differ from those that the last backward has left."""
        for each in parameters_of(optimizer):
            left, now = self.present.get(each), each.grad
            if left is not None and now is not None and left[:2] != (id(now), version_of(now)):
                self.step_of(optimizer).changed |= bool(left[2] != local(now).double().sum())

    def scaled_step(self, run: Original, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """A scaler skips `optimizer.step()` when a gradient has overflowed."""
        before, step = len(self.record.steps), self.step_of(optimizer)
        step.line = script_line()
        found = run(scaler, optimizer, *args, **kwargs)
        if len(self.record.steps) == before and self.active:
            self.close(optimizer, skipped=True)
            self.updates[step.optimizer] = step.number
            del self.open[step.optimizer]
        return found

    def clip(self, run: Original, parameters: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(parameters, nn.Module):  # FSDP1's own method
            chosen, parameters = list(parameters.parameters()), parameters
        else:
            parameters = chosen = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        self.clipping += 1
        if self.active and self.clipping == 1:
            most = args[0] if args else kwargs.get("max_norm", float("inf"))
            order = 0.0 if "value" in run.__name__ else float(
                kwargs.get("norm_type", args[1] if len(args) > 1 and "with" not in run.__name__ else 2.0))
            for optimizer in self.optimizers:
                if {id(each) for each in parameters_of(optimizer)} & {id(each) for each in chosen}:
                    step = self.step_of(optimizer)
                    self.notice_changed(optimizer)
                    step.before = step.before or self.gradients(optimizer)
                    norms = {(name, part.key): float(torch.linalg.vector_norm(one.double()))
                             for each in chosen if each.grad is not None
                             for name, one, part in self.pieces(each, each.grad)}
                    step.clips.append(Clip(script_line(), float(most), order, norms, step.unscaled))
        try:
            return run(parameters, *args, **kwargs)
        finally:
            self.clipping -= 1

    # -- trainers

    def wrap(self, run: Original, *args: Any, **kwargs: Any) -> Any:
        """A trainer wraps a module: note the weights before it shards them."""
        module = next(each for each in (*args[-2:], kwargs.get("module")) if isinstance(each, nn.Module | list)
                      and each is not (args[0] if run.__name__ == "__init__" else None))
        modules = module if isinstance(module, list) else [module]
        before = [(owner, name, digest(each, whole(each.shape))) for one in modules for owner in one.modules()
                  for name, each in owner._parameters.items()
                  if each is not None and not isinstance(each, DTensor) and not each.is_meta]
        self.wrapping += 1
        try:
            found = run(*args, **kwargs)
        finally:
            self.wrapping -= 1
        if not self.wrapping:
            made = args[0] if run.__name__ == "__init__" else None
            name, group, reduced, shards = of_wrapper(made, modules[0], kwargs)
            self.record.trainer, self.record.group = name, group
            if reduced is not None:
                about = torch.finfo(reduced)
                self.record.reduced = max(self.record.reduced, (about.eps / 2, about.tiny))
            self.record.wrapping_line = script_line()
            if shards:
                for one in modules:
                    self.wrapped.append((one, before, [digest_of([each]) for each in one.parameters()]))
        return found

    def hook(self, run: Original, model: Any, state: Any, hook: Any) -> Any:
        """DDP reduces by a hook, which may narrow the dtype or lose something."""
        narrow = {"fp16_compress_hook": torch.float16, "bf16_compress_hook": torch.bfloat16}.get(hook.__name__)
        if narrow is not None:
            self.record.reduced = max(self.record.reduced, (torch.finfo(narrow).eps / 2, torch.finfo(narrow).tiny))
        elif hook.__module__.startswith("torch.") and hook.__name__ not in ("allreduce_hook", "noop_hook"):
            self.record.obstacles.append(f"the communication hook {hook.__name__} may be lossy")
        return run(model, state, hook)

    def divide(self, run: Original, module: Any, factor: float) -> Any:
        self.record.divisor = float(factor)
        return run(module, factor)

    def sample(self, run: Original, sampler: Any) -> Any:
        if sampler.shuffle:
            self.epoch = {"num_replicas": sampler.num_replicas, "seed": sampler.seed, "epoch": sampler.epoch,
                          "samples": len(sampler.dataset), "line": script_line()}
        return run(sampler)

    def join(self, run: Original, *args: Any) -> Any:
        self.record.obstacles.append("a Join lets the ranks have unequal numbers of steps")
        return run(*args)

    def communicate(self, run: Original, *args: Any, **kwargs: Any) -> Any:
        """Note communication of the script's own within a forward, and any message: ranks may hold parts of a model."""
        messages = run.__name__ in ("send", "recv", "batch_isend_irecv")
        frame = sys._getframe(2)
        while frame.f_back is not None and frame.f_code.co_filename.endswith(FORWARDING):
            frame = frame.f_back
        if self.active and not frame.f_code.co_filename.startswith(TRAINERS):
            if self.depth or messages:
                self.record.communicates = "messages" if messages else self.record.communicates or "collectives"
            elif not self.clipping and args and isinstance(args[0], torch.Tensor) and args[0].numel() > 1:
                for step in self.open.values():  # the script reduces gradients only now, after it has clipped them
                    step.before.clear()
        return run(*args, **kwargs)


def parameters_of(optimizer: Any) -> list[Any]:
    """The parameters of an optimizer, or of DeepSpeed's engine."""
    if isinstance(optimizer, nn.Module):
        return list(optimizer.parameters())
    return [each for group in getattr(optimizer, "param_groups", ()) for each in group["params"]]


def leaves_below(tensors: list[Any]) -> list[Any]:
    """The tensors in which the graph of these ends: those that will get a gradient."""
    seen: set[Any] = set()
    found, nodes = [], [each.grad_fn for each in tensors if each.grad_fn is not None]
    while nodes:
        node = nodes.pop()
        if node not in seen:
            seen.add(node)
            if hasattr(node, "variable"):
                found.append(node.variable)
            nodes += [below for below, _ in node.next_functions if below is not None]
    return found
