"""Observes how trainers wrap a model: over which ranks they reduce, in which dtype, and what they shard."""

import weakref
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import fsdp
from torch.distributed.algorithms.join import Join
from torch.distributed.tensor import DTensor, parallel

from zerosim.torch.check.adapters import of_plan, of_wrapper
from zerosim.torch.check.names import plainly
from zerosim.torch.check.record import Remark
from zerosim.torch.check.tensors import digest_of, script_line
from zerosim.torch.check.window import Window


class Wrapping(Window):
    """DDP, FSDP, tensor parallelism, Join and communication hooks."""

    def observe(self) -> None:
        super().observe()
        self.wrapped: list[tuple[Any, list[tuple[Any, str, Any]], list[Any]]] = []
        """Sharded modules until the first update, with digests of their parameters before and after it."""
        self.tied: list[tuple[weakref.ref[Any], weakref.ref[Any], str, str]] = []
        """Two modules that share a parameter, and its name in each."""

        facts = self.facts
        for owner in (dist, dist.distributed_c10d):
            self.watch(owner, "init_process_group", None, lambda *_: self.identify())
        self.watch(Join, "__enter__", lambda *_: self.obstacle("a Join lets the ranks have unequal numbers of steps"))
        self.watch(fsdp.FSDPModule, "set_gradient_divide_factor", lambda args, _: setattr(
            facts, "divisor", float(args[1])))
        self.watch(nn.parallel.DistributedDataParallel, "register_comm_hook", self.hook)
        for owner in (nn.parallel.DistributedDataParallel, fsdp.FullyShardedDataParallel):
            self.watch(owner, "__init__", partial(self.before_wrapping, 1), self.after_wrapping, "wrapping")
        for owner in (fsdp, dist.fsdp._fully_shard):
            self.watch(owner, "fully_shard", partial(self.before_wrapping, 0), self.after_wrapping, "wrapping")
        self.watch(nn.Module, "to_empty", lambda args, _: self.note_tied(args[:1]))
        for owner in (parallel, parallel.api):
            self.watch(owner, "parallelize_module", lambda args, kwargs: of_plan(facts, args, kwargs))

    def before_wrapping(self, position: int, args: Any, kwargs: Any) -> list[Any]:
        """A trainer wraps the module at this position of its arguments: note the weights before it shards them."""
        given = args[position] if len(args) > position else kwargs["module"]
        modules = given if isinstance(given, list) else [given]
        self.note_tied(modules)
        before = [(owner, name, digest_of([parameter])) for module in (() if self.facts.updates else modules)
                  for owner in module.modules() for name, parameter in owner._parameters.items()
                  if parameter is not None and not isinstance(parameter, DTensor) and not parameter.is_meta]
        return [modules, before, args[0] if position else None]

    def after_wrapping(self, seen: Any, args: Any, kwargs: Any, result: Any) -> None:
        facts = self.facts
        if self.wrapping or not seen:
            return
        modules, before, trainer = seen
        name, group, reduced, shards = of_wrapper(trainer, modules[0], kwargs)
        facts.trainer, facts.group, facts.wrapping_line = name, group, script_line()
        self.names.copied += [weakref.ref(module) for module in modules]
        if reduced is not None:
            about = torch.finfo(reduced)
            facts.reduced = max(facts.reduced, (about.eps / 2, about.tiny))
        for module in modules if shards else ():
            self.wrapped.append((module, before, [digest_of([parameter]) for parameter in module.parameters()]))

    def note_tied(self, modules: Any) -> None:
        """Note which modules share a parameter: what moves or shards them may give each of them its own."""
        owners: dict[int, tuple[Any, str]] = {}
        for owner in (owner for module in modules for owner in module.modules()):
            for name, parameter in owner._parameters.items():
                first, of_first = owners.setdefault(id(parameter), (owner, name))
                if first is not owner and parameter is not None:
                    self.tied.append((weakref.ref(first), weakref.ref(owner), of_first, name))

    def note_wrapped(self) -> None:
        """Whether the shards of wrapped modules are what they were made from."""
        for module, before, after in self.wrapped:
            now = [digest_of([parameter]) for parameter in module.parameters()]
            if len(now) == len(after) and before:
                same = torch.stack([bits == kept for bits, kept in zip(now, after, strict=True)]).all()
                for owner, name, value in before:
                    if owner in self.names.paths:
                        path = plainly(f"{self.names.paths[owner]}.{name}").lstrip(".")
                        self.number(torch.where(same, value, 0), self.facts.wrapped, path)
        self.wrapped = []
        for one, other, name, of_other in self.tied:
            first, last = (getattr(owner(), "_parameters", {}).get(key)
                           for owner, key in ((one, name), (other, of_other)))
            if first is not None and last is not None and first is not last:
                known = self.names.of
                self.remarks.append(Remark(
                    "tied weights are apart", f"{known.get(first, name)} and {known.get(last, of_other)} were one "
                    "parameter, and are two: each gets a part of the gradient; tie them again after to_empty() and "
                    "before the optimizer is made", self.facts.wrapping_line, known.get(first, name)))
        self.tied = []

    def hook(self, args: Any, kwargs: Any) -> None:
        """DDP reduces by a hook, which may narrow the dtype or lose something."""
        facts, hook = self.facts, kwargs["hook"] if "hook" in kwargs else args[2]
        name = getattr(hook, "__name__", type(hook).__name__)
        narrow = {"fp16_compress_hook": torch.float16, "bf16_compress_hook": torch.bfloat16}.get(name)
        if narrow is not None:
            facts.reduced = max(facts.reduced, (torch.finfo(narrow).eps / 2, torch.finfo(narrow).tiny))
        elif not (getattr(hook, "__module__", None) or "").startswith("torch."):
            facts.own_hook = True
        elif name not in ("allreduce_hook", "noop_hook"):
            self.obstacle(f"the communication hook {name} may be lossy, or reduce within a host only")
