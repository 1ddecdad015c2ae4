"""Records a script while it trains: batches, each backward's gradients before any reduction, clipping, updates.

The gradients are seen by `Tensor.register_hook`, which runs before a gradient is accumulated, so before DDP, FSDP or
DeepSpeed reduce it. The parameters are found by walking the graph below each loss; their names by modules that are
called. Nothing is computed again, nothing is sent, and no rank waits for another: a rank only writes down what it sees.
Sketches and digests stay on their device until an update is over, and are then copied at once.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import product
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives, fsdp
from torch.distributed.algorithms.join import Join
from torch.distributed.tensor import DTensor, parallel
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
    of_plan,
    of_wrapper,
)
from zerosim.torch.check.record import Activation, Batch, Clip, Facts, Frame, Gathered, Sketched, Step, Term, Weights
from zerosim.torch.check.sketch import digest, sketch, whole
from zerosim.torch.check.tensors import (
    calls_itself,
    digest_of,
    leaves_below,
    local,
    loss_factor,
    parameters_of,
    place_of,
    script_line,
    version_of,
)
from zerosim.torch.check.watching import Watch

COMMUNICATION = (
    "all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_single", "all_gather_tensor", "all_to_all",
    "all_to_all_single", "all_to_all_single_autograd", "reduce_scatter_tensor", "reduce_scatter_single",
    "reduce_scatter", "broadcast")
MESSAGES = ("send", "recv")
WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module", "_forward_module", "_checkpoint_wrapped_module")


class Recorder(Watch):
    """The frames of this rank, given to `keep` one by one, while `listening`."""

    def __init__(self, keep: Callable[[Frame], None], first: int = 1, last: int | None = None) -> None:
        super().__init__()
        self.keep, self.first, self.last = keep, first, last
        self.facts = Facts()
        self.names: Any = WeakIdKeyDictionary()
        """The name of each parameter, also of those that FSDP2 has gathered."""
        self.lent: Any = WeakIdKeyDictionary()
        """The gathered parameters among them, whose memory is there in forward and backward only."""
        self.flat: Any = WeakIdKeyDictionary()
        """The pieces of FSDP1's flat parameters."""
        self.parts: Any = WeakIdKeyDictionary()
        """The place of each parameter that is a view of a flat one."""
        self.hooked: Any = WeakIdKeyDictionary()
        self.paths: Any = WeakIdKeyDictionary()
        self.optimizers: list[Any] = []
        self.updates: dict[int, int] = {}
        self.open: dict[int, Step] = {}
        """The present step of each optimizer, as far as it is known before the update."""
        self.terms: dict[str, list[Term]] = {}
        self.present: Any = WeakIdKeyDictionary()
        """The gradients that the last backward has left: their identity and version."""
        self.forget()
        self.unseen = True
        """Whether no forward has ended yet."""
        self.wrapped: list[tuple[Any, list[tuple[Any, str, Any]], list[Any]]] = []
        self.backwards = self.depth = self.within = self.updating = self.wrapping = self.asleep = self.clipping = 0
        self.line, self.version = "", 0
        self.epoch: tuple[dict[str, int], str] = {}, ""
        """The sampler that has begun an epoch since the last forward, and the line that did."""
        self.scale: Any = None
        self.factor: float | None = None
        """By what the loss is multiplied: GradScaler's tensor, and a script's own factor for a loss of 16 bits."""
        self.half = False
        self.reduced: Any = None
        """The number that the script has reduced last, and before this backward."""
        self.counted: Any = None

    def forget(self) -> None:
        """A new window begins."""
        self.batches: list[Batch] = []
        self.gathered: dict[str, tuple[Gathered, Any]] = {}
        self.activations: list[Activation] = []
        self.reasons: list[str] = []
        self.forwards, self.returned = 0, set[int]()

    @property
    def active(self) -> bool:
        step = 1 + max(self.updates.values(), default=0)
        return not self.asleep and self.first <= step and (self.last is None or step <= self.last)

    @contextmanager
    def listening(self) -> Iterator["Recorder"]:
        """A context in which everything that trains is recorded."""
        self.watch(torch.autograd, "backward", self.before_backward, self.after_backward)
        self.watch(torch.autograd, "grad", self.sleep, self.differentiated)
        self.watch(torch.optim.Optimizer, "__init__", None, self.made_optimizer)
        self.watch(torch.amp.GradScaler, "scale", None, self.scaled)
        self.watch(torch.amp.GradScaler, "unscale_", self.before_unscaling, self.unscaled)
        self.watch(torch.amp.GradScaler, "step", self.before_scaled_step, self.scaled_step)
        self.watch(Join, "__enter__", lambda *_: self.obstacle("a Join lets the ranks have unequal numbers of steps"))
        self.watch(DistributedSampler, "__iter__", self.sample)
        self.watch(fsdp.FSDPModule, "set_gradient_divide_factor", lambda args, _: setattr(
            self.facts, "divisor", float(args[1])))
        self.watch(nn.parallel.DistributedDataParallel, "register_comm_hook", self.hook)
        self.watch(fsdp.FullyShardedDataParallel, "clip_grad_norm_", partial(self.clip, None), self.clipped)
        for owner in (nn.parallel.DistributedDataParallel, fsdp.FullyShardedDataParallel):
            self.watch(owner, "__init__", partial(self.before_wrapping, 1), self.wrap)
        for owner in (fsdp, dist.fsdp._fully_shard):
            self.watch(owner, "fully_shard", partial(self.before_wrapping, 0), self.wrap)
        for owner in (parallel, parallel.api):
            self.watch(owner, "parallelize_module", lambda args, kwargs: of_plan(self.facts, args, kwargs))
        for owner in (nn.utils, nn.utils.clip_grad):
            for name in ("clip_grad_norm_", "clip_grads_with_norm_", "clip_grad_value_"):
                self.watch(owner, name, partial(self.clip, name), self.clipped, listed=True)
        for owner in (dist, dist.distributed_c10d, _functional_collectives):
            for name in COMMUNICATION:
                self.watch(owner, name, partial(self.communicate, name))
        groups = dist.ProcessGroup, *dist.ProcessGroup.__subclasses__()  # backends in Python override its methods
        for owner, name in product(groups, MESSAGES):  # not dist.isend, which PyTorch knows by its identity
            self.watch(owner, name, partial(self.communicate, "messages"))
        for handle in (register_module_forward_pre_hook(self.before_forward),
                       register_module_forward_hook(self.after_forward, with_kwargs=True, always_call=True),
                       register_optimizer_step_pre_hook(self.before_update),
                       register_optimizer_step_post_hook(self.safe(self.after_update))):
            self.leaving.callback(handle.remove)
        try:
            yield self
        finally:
            self.leaving.close()
            for handle in self.hooked.values():
                handle.remove()

    def fail(self, why: str) -> None:
        self.facts.failed = why
        super().fail(why)

    def obstacle(self, reason: str) -> None:
        if reason not in self.facts.obstacles:
            self.facts.obstacles.append(reason)

    # -- modules. These two run while a model is compiled, too, and must then be nothing but a return.

    def before_forward(self, module: Any, args: Any) -> None:
        if not torch.compiler.is_compiling() and not self.asleep:
            self.safely(self.enter, module)

    def after_forward(self, module: Any, args: Any, kwargs: Any, output: Any) -> None:
        if not torch.compiler.is_compiling() and not self.asleep and self.depth:
            self.safely(self.exit, module, args, kwargs, output, torch.is_grad_enabled())

    def enter(self, module: Any) -> None:
        self.depth += 1
        if self.depth == 1 and self.active and module not in self.paths:
            self.know(module)

    def exit(self, module: Any, args: Any, kwargs: Any, output: Any, training: bool) -> None:
        self.depth -= 1
        if not self.active or not training or self.within:
            return
        if isinstance(module, fsdp.FSDPModule):
            self.note_gathered(module)
        if not self.batches and (self.facts.communicates or self.unseen) and not isinstance(output, DTensor):
            self.note_activation(module, output)
        if not self.depth and self.unseen:  # ranks that do not communicate in a forward hold no parts
            self.unseen = False
            self.activations = self.activations if self.facts.communicates else []
        if not self.depth and any(parameter.requires_grad for parameter in module.parameters()):
            batch = Batch(script_line(), epoch=self.epoch[0], epoch_line=self.epoch[1])
            self.number(digest_of((args, kwargs)), vars(batch), "given")
            self.number(digest_of(output, not_parts=True), vars(batch), "returned")
            self.batches.append(batch)
            self.epoch = {}, ""
            root = next((leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor) and leaf.requires_grad),
                        None)
            if root is not None and not root.is_meta:
                self.half = root.dtype is torch.float16
                self.forwards += 1
                number = id(batch)
                root.register_hook(self.safe(lambda _: self.returned.add(number)))

    def know(self, root: Any) -> None:
        """Name the parameters of a model that is called."""
        for path, module in root.named_modules():
            self.paths.setdefault(module, plainly(path))
            if type(module).__name__ == "DeepSpeedEngine":
                self.watch(type(module), "step", self.before_engine_step, self.after_engine_step)
                self.facts.trainer, self.facts.group = "DeepSpeed", list(range(dist.get_world_size()))
            for flat, pieces, parts in flat_pieces(module, self.paths):
                self.flat[flat] = pieces
                self.parts.update(parts)
            if not isinstance(module, nn.modules.batchnorm._BatchNorm) and not self.updates:
                for name, buffer in module._buffers.items():
                    if buffer is not None and buffer.numel():
                        self.number(digest_of([buffer]), self.facts.buffers, f"{self.paths[module]}.{name}".lstrip("."))
        self.note_lent(root.modules())
        for name, parameter in root.named_parameters():
            self.name(self.lent.get(parameter, parameter), plainly(name))
            if getattr(parameter, "allreduce", True) is False:
                self.facts.experts.append(self.names[parameter])
        self.note_lent(root.modules())

    def name(self, parameter: Any, plain: str) -> None:
        if parameter not in self.names:
            taken = set(self.names.values())
            while plain in taken:
                plain += "'"
            self.names[parameter] = plain

    def note_lent(self, modules: Any) -> None:
        """Give FSDP2's gathered parameters the names of those that the optimizer has."""
        for sharded, full in gathered_parameters(modules):
            self.lent[full] = sharded
            if sharded in self.names:
                self.names[full] = self.names[sharded]

    def note_gathered(self, module: Any) -> None:
        """Note the weights with which a unit of FSDP2 has computed first."""
        for sharded, full in gathered_parameters([module]):
            name = self.names.get(sharded)
            if name and name not in self.gathered and full.untyped_storage().size() and not isinstance(full, DTensor):
                gathered = Gathered(script_line())
                self.number(digest(full, full.shape, whole(full.shape)), vars(gathered), "bits")
                self.gathered[name] = gathered, full.dtype

    def note_activation(self, module: Any, output: Any) -> None:
        """Note what a module returns, and its gradient, for the law of what is alike."""
        if not isinstance(output, torch.Tensor) or output.grad_fn is None or not output.dtype.is_floating_point:
            return
        activation = Activation(self.paths.get(module, type(module).__name__), script_line(),
                                roundoff=torch.finfo(output.dtype).eps)
        self.number(digest(output, output.shape, whole(output.shape)), vars(activation), "bits")
        self.activations.append(activation)

        def arrived(gradient: Any) -> None:
            if self.facts.communicates:
                self.sketch_later(gradient, gradient.shape, whole(gradient.shape), activation)

        output.register_hook(self.safe(arrived))

    # -- gradients

    def pieces(self, parameter: Any, values: Any) -> Iterator[tuple[str, Any, Any, Any]]:
        """The named parts of a parameter's values on this rank, with shape and place; a flat parameter has several."""
        if parameter in self.flat:
            yield from self.flat[parameter](local(values))
        elif parameter in self.parts:
            name, shape, key = self.parts[parameter]
            yield name, values, shape, key
        elif local(values).untyped_storage().size() or not local(values).numel():  # gathered weights may be freed
            yield self.names.get(parameter, "?"), local(values), tuple(values.shape), place_of(values)

    def names_of(self, parameter: Any) -> list[str]:
        if parameter in self.flat:
            return list(self.flat[parameter].names)
        return [self.parts[parameter][0] if parameter in self.parts else self.names.get(parameter, "?")]

    def sketched(self, values: Any, shape: Any, key: Any, of: Any) -> Sketched:
        about = torch.finfo(values.dtype)
        partial_sum = isinstance(of, DTensor) and any(placement.is_partial() for placement in of.placements)
        sketched = Sketched(tuple(shape), key, about.eps / 2, about.tiny, partial_sum)
        self.sketch_later(values, shape, key, sketched)
        return sketched

    def sketch_later(self, values: Any, shape: Any, key: Any, owner: Sketched | Activation) -> None:
        """Give `owner` the sketch of these values, once it is copied."""
        self.later(sketch(values, shape, key), lambda rows: vars(owner).update(sums=rows[0], squares=rows[1]))

    def before_backward(self, args: Any, kwargs: Any) -> None:
        self.within += 1
        if not self.active:
            return
        roots = args[0] if args else kwargs["tensors"]
        roots = [roots] if isinstance(roots, torch.Tensor) else list(roots)
        if self.within == 1:
            self.backwards, self.line = self.backwards + 1, script_line()
            self.notice_cleared()
            self.version = sum(map(version_of, self.optimized()))
            self.counted = self.reduced if self.reduced is not None else self.counted
            self.factor = loss_factor(roots) if self.half else None
        self.note_lent(self.paths)
        for leaf in leaves_below(roots):
            if leaf not in self.hooked and isinstance(leaf, nn.Parameter):
                self.hooked[leaf] = leaf.register_hook(self.safe(partial(self.arrived, weakref.ref(leaf))))

    def after_backward(self, _: Any, args: Any, kwargs: Any, result: Any) -> None:
        self.within -= 1
        if self.active and not self.within:
            self.note_present()

    def arrived(self, leaf: "weakref.ref[Any]", gradient: Any, by_hand: bool = False) -> None:
        """A gradient that is about to be accumulated."""
        parameter = leaf()
        if not self.active or gradient is None or parameter is None:
            return
        if gradient.layout is not torch.strided:
            self.reasons.append("sparse gradients")
            return
        if parameter not in self.names and parameter not in self.flat:
            if not any(known is parameter for known in self.optimized()):
                self.facts.unknown.append(f"of shape {tuple(parameter.shape)}")
            self.names[parameter] = f"?{len(self.names)}"
        if isinstance(gradient, DTensor):  # FSDP2 computes with plain tensors: only tensor parallelism has these here
            self.facts.row = sorted(gradient.device_mesh.mesh.flatten().tolist())
        for name, values, shape, key in self.pieces(parameter, gradient):
            self.terms.setdefault(name, []).append(Term(
                self.sketched(values, shape, key, gradient), self.backwards, self.line, self.version, by_hand=by_hand))

    def sleep(self, args: Any, kwargs: Any) -> None:
        """`torch.autograd.grad` runs the hooks of tensors, and accumulates nothing."""
        self.asleep += 1

    def differentiated(self, _: Any, args: Any, kwargs: Any, result: Any) -> None:
        """What it returns for parameters may be what the script puts into their `grad`."""
        self.asleep -= 1
        inputs = args[1] if len(args) > 1 else kwargs["inputs"]
        if self.active and not self.within and result and not kwargs.get("create_graph"):
            self.backwards, self.line = self.backwards + 1, script_line()
            inputs = [inputs] if isinstance(inputs, torch.Tensor) else inputs
            for leaf, gradient in zip(inputs, result, strict=False):
                if isinstance(leaf, nn.Parameter):
                    self.arrived(weakref.ref(leaf), gradient, by_hand=True)

    def notice_cleared(self) -> None:
        """Mark the terms whose gradient was there after the last backward, and is not any more."""
        for parameter, (gradient, version) in list(self.present.items()):
            now = parameter.grad
            if now is not None and (id(now) != gradient or version_of(now) == version):
                continue
            for name in self.names_of(parameter):
                for term in self.terms.get(name, ()):
                    if now is None:
                        term.cleared = True
                    else:
                        self.number(~local(now).any(), vars(term), "cleared")
        self.present.clear()

    def optimized(self) -> Iterator[Any]:
        """The parameters of all optimizers."""
        return (parameter for optimizer in self.optimizers for parameter in parameters_of(optimizer))

    def note_present(self) -> None:
        for parameter in self.optimized() if self.facts.trainer != "DeepSpeed" else ():
            if parameter.grad is not None:
                self.present[parameter] = id(parameter.grad), version_of(parameter.grad)

    def notice_touched(self, optimizer: Any) -> None:
        """Note whether the script has written into gradients, or replaced them, since the last backward."""
        for parameter in parameters_of(optimizer) if self.present else ():
            gradient = parameter.grad
            now = None if gradient is None else (id(gradient), version_of(gradient))
            self.step_of(optimizer).touched |= self.present.get(parameter) != now

    # -- updates

    def made_optimizer(self, _: Any, args: Any, kwargs: Any, result: Any) -> None:
        if not self.asleep and not self.wrapping:
            self.step_of(args[0])

    def step_of(self, optimizer: Any) -> Step:
        """The present step of an optimizer."""
        number = next((number for number, known in enumerate(self.optimizers) if known is optimizer), None)
        if number is None:
            number = len(self.optimizers)
            self.optimizers.append(optimizer)
        return self.open.setdefault(number, Step(number, self.updates.get(number, 0) + 1))

    def gradients(self, optimizer: Any) -> dict[str, Sketched]:
        """The gradients that an optimizer sees."""
        gradients = {}
        for parameter in parameters_of(optimizer):
            values = parameter.grad
            if values is None and isinstance(optimizer, nn.Module):
                values = deepspeed_gradient(parameter)
            if values is not None and values.layout is torch.strided:
                for name, piece, shape, key in self.pieces(parameter, values):
                    gradients[name] = self.sketched(piece, shape, key, values)
        return gradients

    def before_update(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        """An optimizer is about to step. What a closure does comes within the step: it is followed by a look."""
        if self.failed or self.asleep:
            return None
        self.updating += 1
        closure = next(filter(callable, (*args[1:], *kwargs.values())), None)
        if self.updating > 1 or closure is None:
            self.safely(self.see, optimizer)
            return None

        def evaluated() -> Any:
            loss = closure()
            self.safely(self.see, optimizer)
            self.safely(self.close, optimizer)
            return loss

        return (tuple(evaluated if argument is closure else argument for argument in args),
                {key: evaluated if argument is closure else argument for key, argument in kwargs.items()})

    def after_update(self, optimizer: Any, *_: Any) -> None:
        if self.asleep:
            return
        self.updating -= 1
        if not self.updating:
            step = self.step_of(optimizer)
            if step.parameters:
                self.close(optimizer)
            self.finish(optimizer)

    def finish(self, optimizer: Any) -> None:
        """The step of an optimizer is over."""
        number = self.step_of(optimizer).optimizer
        self.updates[number] = self.updates.get(number, 0) + 1
        self.open.pop(number, None)
        self.reduced = None

    def see(self, optimizer: Any) -> None:
        """Write down what an update is about to use."""
        if not self.active or self.updating > 1:
            return
        step = self.step_of(optimizer)
        own = [parameter for parameter in parameters_of(optimizer) if parameter not in self.lent]
        step.line = script_line()
        step.parameters = [name for parameter in own for name in self.names_of(parameter)] or ["?"]
        step.gradients = self.gradients(optimizer)
        step.terms = {name: self.terms[name] for name in step.parameters if name in self.terms}
        step.batches, step.activations = self.batches, self.activations
        step.passes = self.forwards, len(self.returned)
        if isinstance(self.scale, torch.Tensor):
            self.number(self.scale, vars(step), "scale")
        elif self.factor is not None:
            step.scale = self.factor
        if self.counted is not None:
            self.number(self.counted, vars(step), "count")
        step.within = getattr(optimizer, "grad_scale", None) is not None
        step.settings = [{key: str(value) if isinstance(value, str | tuple) else float(value)
                          for key, value in group.items()
                          if isinstance(value, float | int | str | tuple) or (key == "lr" and value.is_cpu)}
                         for group in getattr(optimizer, "param_groups", ())]
        step.reasons = [*self.reasons, *filter(None, [deepspeed_obstacle(optimizer)])]
        hooks_of = [(self.hooked[parameter].id, [*parameter._backward_hooks]) for parameter in own
                    if parameter in self.hooked and parameter._backward_hooks]
        if any(hook in hooks[:-1] for hook, hooks in hooks_of):
            step.reasons.append("a hook of the script changes gradients after the check has seen them")
        step.states = self.states(optimizer)
        if not step.clips:
            self.notice_touched(optimizer)
        self.note_weights(step)
        if self.wrapped:
            self.note_wrapped()

    def note_weights(self, step: Step) -> None:
        """Digests of the weights that an update is about to change, and of those that no optimizer has."""
        for parameter in [*self.names, *self.flat]:
            if parameter in self.lent:
                continue
            for name, values, shape, key in self.pieces(parameter, parameter):
                if name not in step.parameters and self.updates:
                    continue
                weights = step.weights[name] = Weights(key, parameter.requires_grad, values.element_size() < 4)
                self.number(digest(values, shape, key), vars(weights), "bits")
                gathered, dtype = self.gathered.get(name, (None, None))
                if gathered is not None:
                    step.gathered[name] = gathered
                    self.number(digest(values.to(dtype), shape, key), vars(weights), "used")

    def states(self, optimizer: Any) -> dict[str, float]:
        """The parameters with optimizer state, with the number of their updates where that needs no wait."""
        state, counts = getattr(getattr(optimizer, "optim", optimizer), "state", {}), {}
        for parameter in state if isinstance(state, dict) else ():
            if parameter in self.names and state[parameter]:
                count = state[parameter].get("step", -1)
                count = -1 if isinstance(count, torch.Tensor) and not count.is_cpu else count
                counts[self.names[parameter]] = float(count)
        return counts

    def close(self, optimizer: Any, skipped: bool = False) -> None:
        """End the step of an optimizer: copy what is on devices, and write it. Its terms are used up."""
        if not self.active:
            return self.forget()
        step = self.step_of(optimizer)
        step.skipped, step.states_after = skipped, len(self.states(optimizer))
        updated = {name for parameter in self.optimized() for name in self.names_of(parameter)}
        orphans = self.terms.keys() - updated if updated else ()
        step.orphans = [name for name in self.names.values() if name in orphans]
        self.copy()
        with suppress(ValueError, RuntimeError):
            self.facts.rank, self.facts.size = dist.get_rank(), dist.get_world_size()
        self.keep(Frame(self.facts, step))
        for name in (*step.orphans, *step.parameters):
            self.terms.pop(name, None)
        self.forget()
        self.open[step.optimizer] = Step(step.optimizer, step.number)
        return None

    def before_engine_step(self, args: Any, kwargs: Any) -> bool:
        """DeepSpeed's engine is its optimizer; those within, of flat partitions, are not followed."""
        boundary = bool(args[0].is_gradient_accumulation_boundary())
        if boundary:
            self.see(args[0])
        self.asleep += 1
        return boundary

    def after_engine_step(self, boundary: bool, args: Any, kwargs: Any, result: Any) -> None:
        self.asleep -= 1
        if boundary:
            self.close(args[0])
            self.finish(args[0])

    # -- scaling and clipping

    def scaled(self, _: Any, args: Any, kwargs: Any, result: Any) -> None:
        if args[0].is_enabled() and args[0]._scale is not None:
            self.scale = args[0]._scale.detach().clone()

    def before_unscaling(self, args: Any, kwargs: Any) -> None:
        self.notice_touched(args[1])

    def unscaled(self, _: Any, args: Any, kwargs: Any, result: Any) -> None:
        if args[0].is_enabled():
            self.step_of(args[1]).unscaled = True
            self.note_present()

    def before_scaled_step(self, args: Any, kwargs: Any) -> tuple[int, int]:
        step = self.step_of(args[1])
        step.line = script_line()
        return step.optimizer, self.updates.get(step.optimizer, 0)

    def scaled_step(self, before: tuple[int, int] | None, args: Any, kwargs: Any, result: Any) -> None:
        """A scaler skips `optimizer.step()` when a gradient has overflowed."""
        if before is not None and self.updates.get(before[0], 0) == before[1]:
            self.close(args[1], skipped=True)
            self.finish(args[1])

    def clip(self, name: str | None, args: Any, kwargs: Any) -> None:
        self.clipping += 1
        if not self.active or self.clipping > 1:
            return
        given = args[0] if args else kwargs["parameters"]
        chosen = ([given] if isinstance(given, torch.Tensor) else
                  list(given.parameters()) if isinstance(given, nn.Module) else list(given))
        most = args[1] if len(args) > 1 else kwargs.get("max_norm", float("inf"))
        order = kwargs.get("norm_type", args[2] if len(args) > 2 and name != "clip_grads_with_norm_" else 2.0)
        names = [part for parameter in chosen for part in self.names_of(parameter)]
        for optimizer in self.optimizers:
            step = self.step_of(optimizer)
            if {id(parameter) for parameter in parameters_of(optimizer)} & {id(parameter) for parameter in chosen}:
                self.notice_touched(optimizer)
                step.unclipped = step.unclipped or self.gradients(optimizer)
                step.clips.append(Clip(script_line(), float(most), 0.0 if name == "clip_grad_value_" else float(order),
                                       names, step.unscaled))

    def clipped(self, _: Any, args: Any, kwargs: Any, result: Any) -> None:
        self.clipping -= 1

    # -- trainers

    def before_wrapping(self, position: int, args: Any, kwargs: Any) -> list[Any]:
        """A trainer wraps the module at this position of its arguments: note the weights before it shards them."""
        given = args[position] if len(args) > position else kwargs["module"]
        modules = given if isinstance(given, list) else [given]
        self.wrapping += 1
        before = [(owner, name, digest_of([parameter])) for module in (() if self.updates else modules)
                  for owner in module.modules() for name, parameter in owner._parameters.items()
                  if parameter is not None and not isinstance(parameter, DTensor) and not parameter.is_meta]
        return [modules, before, args[0] if position else None]

    def wrap(self, seen: Any, args: Any, kwargs: Any, result: Any) -> None:
        self.wrapping -= 1
        if self.wrapping or not seen:
            return
        modules, before, trainer = seen
        name, group, reduced, shards = of_wrapper(trainer, modules[0], kwargs)
        self.facts.trainer, self.facts.group, self.facts.wrapping_line = name, group, script_line()
        self.facts.wrapped_again |= bool(self.updates)
        if reduced is not None:
            about = torch.finfo(reduced)
            self.facts.reduced = max(self.facts.reduced, (about.eps / 2, about.tiny))
        for module in modules if shards else ():
            self.wrapped.append((module, before, [digest_of([parameter]) for parameter in module.parameters()]))

    def note_wrapped(self) -> None:
        """Whether the shards of wrapped modules are what they were made from."""
        for module, before, after in self.wrapped:
            now = [digest_of([parameter]) for parameter in module.parameters()]
            if len(now) == len(after) and before:
                same = torch.stack([bits == kept for bits, kept in zip(now, after, strict=True)]).all().long()
                for owner, name, value in before:
                    if owner in self.paths:
                        self.later(torch.stack([value, same]), partial(
                            self.keep_wrapped, plainly(f"{self.paths[owner]}.{name}").lstrip(".")))
        self.wrapped = []

    def keep_wrapped(self, name: str, values: Any) -> None:
        if values[1]:
            self.facts.wrapped[name] = int(values[0])

    def hook(self, args: Any, kwargs: Any) -> None:
        """DDP reduces by a hook, which may narrow the dtype or lose something."""
        hook = kwargs["hook"] if "hook" in kwargs else args[2]
        name = getattr(hook, "__name__", type(hook).__name__)
        narrow = {"fp16_compress_hook": torch.float16, "bf16_compress_hook": torch.bfloat16}.get(name)
        if narrow is not None:
            self.facts.reduced = max(self.facts.reduced, (torch.finfo(narrow).eps / 2, torch.finfo(narrow).tiny))
        elif not (getattr(hook, "__module__", None) or "").startswith("torch."):
            self.facts.own_hook = True
        elif name not in ("allreduce_hook", "noop_hook"):
            self.obstacle(f"the communication hook {name} may be lossy")

    def sample(self, args: Any, kwargs: Any) -> None:
        sampler = args[0]
        if sampler.shuffle:
            self.epoch = {"num_replicas": sampler.num_replicas, "seed": sampler.seed, "epoch": sampler.epoch,
                          "samples": len(sampler.dataset)}, script_line()

    def communicate(self, name: str, args: Any, kwargs: Any) -> None:
        """Note communication of the script's own within a forward, and any message: ranks may hold parts of a model."""
        if not self.active or not (name == "messages" or calls_itself()):
            return
        value, kind = args[0] if args else None, "all_to_all" if "all_to_all" in name else "collectives"
        if name == "messages" or self.depth:
            kind = name if name == "messages" else kind
            if kind not in self.facts.communicates:
                self.facts.communicates.append(kind)
        elif not self.clipping and not self.within and isinstance(value, torch.Tensor):
            if value.numel() == 1:
                self.reduced = value.detach().clone()
            else:
                for step in self.open.values():  # the script reduces gradients only now, after it has clipped them
                    step.unclipped.clear()


def plainly(path: str) -> str:
    """A path of modules without wrappers."""
    return ".".join(name for name in path.split(".") if name not in WRAPPERS)
