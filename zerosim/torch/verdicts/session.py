"""Records a script while it trains: forwards, backwards, cleared gradients, clipping, updates.

A session only records, in memory of this rank. Nothing is compared, and no rank waits for another, before
`optimizer.step()`.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from zerosim.torch.verdicts.findings import Book, script_line
from zerosim.torch.verdicts.reference import (
    WRAPPERS,
    Chances,
    ForwardCall,
    FullModel,
    attributes_of,
    autocast_now,
    digest,
    inner,
    kept,
    nodes_below,
    parameters_among,
    plain_name,
    prefixes_of,
    tensors_in,
)
from zerosim.torch.verdicts.split import handle_of, handles, is_whole, local, pieces_of, register, units


@dataclass
class Tracked:
    """A model that trains, and its calls since the last update."""

    root: Any
    calls: list[ForwardCall] = field(default_factory=list)
    cleared: dict[str, int] = field(default_factory=dict)
    """For each parameter the number of the first backward since its gradient was cleared."""
    reference: FullModel | None = None
    used: dict[str, tuple[str, str]] = field(default_factory=dict)
    """The digest of each gathered parameter as a forward of this step has used it, and the line of that forward."""
    reductions: int = 0
    """How many backwards have reduced its gradients."""
    last_reduced: int = 0
    examined: bool = False
    of_all_ranks: bool = False
    """Whether all ranks began with equal weights, so that a trainer of a smaller group is a fault."""
    strange: list[tuple[int, ...]] = field(default_factory=list)
    """The shapes of parameters that its forward uses and that it does not have."""
    obstacles: list[str] = field(default_factory=list)
    """Why this step's gradients cannot be computed again."""
    paths: dict[int, str] = field(default_factory=dict)
    copies: dict[str, tuple[int, int, Any]] = field(default_factory=dict)
    before: dict[str, str] = field(default_factory=dict)
    """The digests of the weights before the last update."""
    left: dict[str, str] = field(default_factory=dict)
    """The digest of each gradient as the last backward, or GradScaler's unscale_, has left it."""

    def __post_init__(self) -> None:
        self.prefixes = prefixes_of(self.root)
        self.paths = {id(inner(module)): plain_name(path + ".", self.prefixes).rstrip(".") if path else ""
                      for path, module in reversed(list(self.root.named_modules()))}
        self.paths[id(inner(self.root))] = ""
        self.sharded = bool(units(self.root))
        register(self.root)

    def parameters(self) -> dict[str, Any]:
        """The parameters by their names without wrappers; a tied one has its first name."""
        found = {self.plain(name): each for name, each in self.root.named_parameters()}
        for group in units(self.root):
            for each in group.fsdp_params:
                info = each._module_info
                name = f"{self.paths[id(info.module)]}.{info.param_name}".lstrip(".")
                if name in found:
                    found[name] = each.sharded_param
        for handle in handles(self.root):
            for piece, each in zip(pieces_of(handle), handle.flat_param._params or (), strict=False):
                found[f"{self.paths[id(piece.module)]}.{piece.name}".lstrip(".")] = each
        return found

    def plain(self, name: str) -> str:
        """A name of `root` without the wrappers' parts."""
        return plain_name(name, self.prefixes)

    def buffers(self) -> dict[str, Any]:
        """Copies of the buffers as they are now; one that has not changed is not copied again."""
        for name, each in self.root.named_buffers():
            plain, mark = plain_name(name, self.prefixes), (id(each), each._version)
            if self.copies.get(plain, ())[:2] != mark:
                self.copies[plain] = (*mark, each.detach().clone())
        return {name: entry[2] for name, entry in self.copies.items()}


class Drop(NamedTuple):
    """A forward whose gradients were cleared unused, and the line that cleared them."""

    call: ForwardCall
    line: str


@dataclass
class Followed:
    """An optimizer and what has happened to its gradients since its last update."""

    optimizer: Any
    updates: int = 0
    cleared: bool = True
    unscaled: float = 1.0
    clips: list["Clip"] = field(default_factory=list)
    drops: list[Drop] = field(default_factory=list)
    """Gradients of this step that were cleared unused."""
    zeroed: bool = False
    """Whether they were ever cleared by `zero_grad`."""
    others_stepped: bool = False
    reduced_clipped: bool = False
    """Whether the script has called all_reduce after clipping."""
    scheduled: dict[int, int] = field(default_factory=dict)
    line: str = ""


@dataclass
class Clip:
    """A call of `clip_grad_norm_`: the gradients before it by the parameter's identity, and what it returned."""

    before: dict[int, Any]
    most: float
    order: float
    line: str
    norm: Any
    """None if the values were clipped."""
    unscaled: float = 1.0


class Session:
    """All models and optimizers of a script, found by themselves."""

    def __init__(self, first: int, last: int | None) -> None:
        self.first, self.last = first, last
        self.book = Book()
        self.models: list[Tracked] = []
        self.optimizers: list[Followed] = []
        self.wrappers: list[Any] = []
        self.asleep = False
        """Whether the check itself computes, so that nothing is recorded."""
        self.backwards = 0
        self.depth = 0
        self.scalars_reduced = 0
        self.communicates = ""
        """How the script's own forwards have called a collective, or sent a message."""
        self.scale = 1.0
        self.on_step: Callable[..., None] = lambda optimizer, *_: None
        self.on_stepped: Callable[[Any], None] = lambda optimizer: None
        self.on_skipped: Callable[[Any], None] = lambda optimizer: None
        self.leaving = ExitStack()
        """Undoes, when the check ends, what was wrapped in its course."""
        self.begun: set[tuple[int, int]] = set()
        self.edges: set[int] = set()
        """The numbers of the operations that gave recorded outputs."""
        self.epochs: dict[int, tuple[int, str]] = {}
        """Samplers that have begun an epoch since the last forward: its number, and the line."""
        self.first_batches: dict[tuple[int, int], str] = {}
        self.repeated = ""
        """The line at which a sampler began an epoch that it had given before."""
        self.sampling: list[dict[str, Any]] = []
        self.sampled: list[dict[str, Any]] = []
        """The settings of samplers that have begun an epoch since the last forward, and of those before it."""
        self.joins = False
        """Whether a Join lets the ranks have unequal numbers of steps."""
        self.backward_line = ""
        self.scaled = True
        """Whether the present backward began with a product or a quotient of the loss."""
        self.wrapping_line = ""
        self.norm_type = 2.0
        self.shards: dict[tuple[int, str], tuple[str, str, Callable[[], Any]]] = {}
        """For each sharded parameter its digest before, that of its shard, and what returns the shard now."""
        self.ties: list[tuple[Any, str, Any, str]] = []

    @property
    def active(self) -> bool:
        """Whether the present step is among those to check."""
        step = 1 + max((each.updates for each in self.optimizers), default=0)
        return not self.asleep and step >= self.first and (self.last is None or step <= self.last)

    def followed(self, optimizer: Any) -> Followed:
        for each in self.optimizers:
            if each.optimizer is optimizer:
                return each
        self.optimizers.append(Followed(optimizer))
        return self.optimizers[-1]

    def tracked(self, module: Any) -> Tracked | None:
        """The model to which a called module belongs; a new one if it has parameters that train."""
        bare = inner(module)
        for model in self.models:
            if id(bare) in model.paths:
                return model
        if not any(each.requires_grad for each in module.parameters()):
            return None
        root = next((each for each in self.wrappers if any(part is bare for part in each.modules())), module)
        held = {id(each) for each in root.parameters()}
        self.models = [each for each in self.models if not {id(p) for p in each.root.parameters()} <= held]
        self.models.append(Tracked(root))
        return self.models[-1]

    def begin(self, module: Any, args: Any, kwargs: Any) -> tuple[Tracked, ForwardCall] | None:
        """Record a forward that trains; None if it does not."""
        model = self.tracked(module)
        if model is None or not torch.is_grad_enabled() or torch.is_inference_mode_enabled():
            return None
        attributes = {path: attributes_of(each) for path, each in
                      ((model.paths.get(id(inner(each))), each) for each in inner(model.root).modules()
                       if type(each).__name__ not in WRAPPERS) if path is not None}
        call = ForwardCall(model.paths[id(inner(module))], kept(args), kept(kwargs), Chances(), autocast_now(),
                           model.buffers(), attributes, script_line(),
                           version=sum(local(each)._version for each in model.parameters().values()))
        given = [each for each in tensors_in((args, kwargs)) if each.numel()]
        if any(each.numel() > 1 and (each != each.reshape(-1)[0]).any() for each in given):
            call.digest = digest(given)
        self.sampled = [*self.sampled, *self.sampling]
        self.sampling.clear()
        for sampler, (epoch, line) in self.epochs.items():
            if call.digest and self.first_batches.setdefault((sampler, epoch), call.digest) == call.digest:
                self.repeated = line if (sampler, epoch) in self.begun else self.repeated
            self.begun.add((sampler, epoch))
        self.epochs.clear()
        model.calls.append(call)
        return model, call

    def ended(self, model: Tracked, call: ForwardCall, output: Any) -> None:
        """Record the outputs of a forward, and have backward record their gradients."""
        leaves = [each for each in tensors_in(output) if each.requires_grad]
        call.outputs = [each.detach().clone() for each in leaves]
        self.edges |= {each.grad_fn._sequence_nr() for each in leaves if each.grad_fn is not None}
        if not model.examined:
            model.examined = True
            known = {id(p) for other in self.models for p in other.root.parameters()}
            known |= {id(p) for other in self.optimizers for p in parameters_of(other.optimizer)}
            known |= {id(each._unsharded_param) for other in self.models for group in units(other.root)
                      for each in group.fsdp_params if hasattr(each, "_unsharded_param")}
            known |= {id(handle.flat_param) for other in self.models for handle in handles(other.root)}
            model.strange = [tuple(each.shape) for each in parameters_among(nodes_below(leaves, set()))
                             if id(each) not in known]
        for number, each in enumerate(leaves):
            each.register_hook(lambda gradient, number=number: self.arrived(model, call, number, gradient))

    def arrived(self, model: Tracked, call: ForwardCall, number: int, gradient: Any) -> None:
        """The gradient of an output. A second one of the same output is added: backward is linear."""
        if self.asleep or gradient is None:
            return
        if call.backward not in (0, self.backwards):
            model.obstacles.append("a second backward went through the same forward")
        call.backward = self.backwards
        call.backward_line, call.scaled = self.backward_line, self.scaled
        call.synchronized = synchronizes(model.root)
        if call.synchronized and model.last_reduced != self.backwards:
            model.reductions, model.last_reduced = model.reductions + 1, self.backwards
        found = gradient.detach().clone()
        call.gradients[number] = found if number not in call.gradients else call.gradients[number] + found

    def backward_begins(self, tensors: list[Any], creates_graph: bool) -> None:
        """Number a backward, and note which gradients the script has cleared by hand before."""
        self.backwards += 1
        self.backward_line = script_line()
        below = nodes_below(tensors, self.edges)
        beside = {id(each) for each in parameters_among(below)}
        factors = sum(node.name().startswith(("Div", "Mul")) for node in below)
        self.scaled = factors > (self.scale != 1)
        for model in self.models:
            name = next((name for name, each in model.parameters().items() if id(each) in beside), "")
            if name:
                model.obstacles.append(f"the loss uses {name} beside the forward of the model")
            if creates_graph:
                model.obstacles.append("gradients of gradients (create_graph)")
            if type(model.root).__name__ in WRAPPERS[2:]:
                continue
            sharded = any(hasattr(each, "to_local") for each in model.parameters().values())
            if sharded and not all(call.synchronized for call in model.calls if call.backward):
                continue
            for each in self.optimizers:
                own = parameters_of(each.optimizer)
                if own and all(p.grad is None for p in own):
                    self.dropped(each, model, {id(p) for p in own}, self.backward_line)
            for name, each in model.parameters().items():
                if each.grad is None:
                    model.cleared[name] = self.backwards
        for each in self.optimizers:
            if not each.cleared and not any(has_gradient(p) for p in parameters_of(each.optimizer)):
                each.cleared = True

    def gradients_are_left(self) -> None:
        """Note the gradients as they are, so that changes by the script are seen."""
        for model in self.models:
            model.left = {name: digest([each.grad]) for name, each in model.parameters().items()
                          if each.grad is not None and each.grad.layout is torch.strided}

    def zeroed(self, parameters: list[Any], line: str) -> None:
        """The script clears the gradients of `parameters`."""
        ids = {id(each) for each in parameters}
        for each in self.optimizers:
            own = {id(p) for p in parameters_of(each.optimizer)}
            if own and own <= ids:
                each.cleared = each.zeroed = True
                for model in self.models:
                    if any(p.grad is not None for p in model.parameters().values() if id(p) in own):
                        self.dropped(each, model, own, line)
        for model in self.models:
            for name, p in model.parameters().items():
                if id(p) in ids:
                    model.cleared[name] = self.backwards + 1

    def dropped(self, followed: Followed, model: Tracked, own: set[int], line: str) -> None:
        """Note the calls whose gradients of the parameters `own` were cleared before an update."""
        since = [model.cleared.get(name, 0) for name, p in model.parameters().items() if id(p) in own]
        unused = [call for call in model.calls if call.backward and call.backward >= min(since, default=self.backwards)]
        if all(bool(g.isfinite().all()) for call in unused for g in call.gradients.values()):
            followed.drops += [Drop(call, line) for call in unused]

    def used(self, module: Any) -> None:
        """Note the gathered weights with which a part of a sharded model has just computed."""
        if self.asleep or not self.depth:
            return
        for model in self.models if self.active else ():
            path = model.paths.get(id(module)) if model.sharded else None
            for name, each in module._parameters.items() if path is not None else ():
                if each is not None and is_whole(each):
                    model.used[f"{path}.{name}".lstrip(".")] = digest([each]), script_line()

    def wrapping(self, module: Any) -> None:
        """Note which parameters of a module are tied before a trainer wraps it."""
        self.wrapping_line = script_line()
        first: dict[int, tuple[Any, str]] = {}
        for owner in module.modules():
            for name, each in owner._parameters.items():
                if each is not None and first.setdefault(id(each), (owner, name)) != (owner, name):
                    self.ties.append((*first[id(each)], owner, name))

    def sharding(self, module: Any) -> list[tuple[Any, str, str]]:
        """The parameters of `module` before they are sharded: owner, name, digest."""
        self.wrapping(module)
        return [(owner, name, digest([each])) for owner in module.modules() for name, each in owner._parameters.items()
                if each is not None and local(each) is each and not each.is_meta]

    def sharded(self, before: list[tuple[Any, str, str]]) -> None:
        for owner, name, whole in before:
            if hasattr(owner._parameters[name], "to_local"):
                shard = partial(owner._parameters.get, name)
                self.shards[id(owner), name] = whole, digest([shard()]), shard

    def shards_of(self, model: Tracked) -> dict[str, tuple[str, bool]]:
        """For each sharded parameter the digest before sharding, and whether its shard is still the same."""
        return {f"{model.paths[owner]}.{name}".lstrip("."): (whole, digest([shard()]) == part)
                for (owner, name), (whole, part, shard) in self.shards.items() if owner in model.paths}

    def untied(self, model: Tracked) -> list[str]:
        """Two names of a weight that was tied when it was wrapped, and is not any more; empty if there is none."""
        for owner, name, other, second in self.ties:
            if id(owner) in model.paths and owner._parameters[name] is not other._parameters[second]:
                return [f"{model.paths[id(one)]}.{last}".lstrip(".") for one, last in ((owner, name), (other, second))]
        return []

    def forget(self, followed: Followed) -> None:
        """An update has used the gradients of its parameters."""
        own = {id(p) for p in parameters_of(followed.optimizer)}
        for model in self.models:
            held = [name for name, p in model.parameters().items() if id(p) in own]
            if held:
                for name in held:
                    model.cleared[name] = self.backwards + 1
                still = min((model.cleared.get(name, 0) for name, p in model.parameters().items() if p.requires_grad
                             and any(id(p) in {id(q) for q in parameters_of(o.optimizer)} for o in self.optimizers)),
                            default=self.backwards + 1)
                model.calls = [call for call in model.calls if call.backward >= still]
                model.obstacles.clear()
                model.used.clear()
        followed.cleared, followed.unscaled, followed.reduced_clipped = False, 1.0, False
        followed.clips.clear()
        followed.drops.clear()
        followed.scheduled.clear()
        for other in self.optimizers:
            other.others_stepped = other is not followed
        self.scalars_reduced, self.scale = 0, 1.0
        self.sampled.clear()
        self.edges.clear()


def parameters_of(optimizer: Any) -> list[Any]:
    """The parameters of an optimizer, or of DeepSpeed's engine."""
    if isinstance(optimizer, nn.Module):
        return list(optimizer.parameters())
    return [each for group in getattr(optimizer, "param_groups", ()) for each in group["params"]]


def has_gradient(parameter: Any) -> bool:
    """Whether there is a gradient with anything but zeros."""
    return parameter.grad is not None and bool(local(parameter.grad).any())


def synchronizes(root: Any) -> bool:
    """Whether a backward would reduce gradients now."""
    for module in root.modules():
        if isinstance(module, nn.parallel.DistributedDataParallel):
            return bool(module.require_backward_grad_sync)
        if handle_of(module) is not None:
            return bool(module._sync_gradients)
    return all(group.reduce_grads for group in units(root))
