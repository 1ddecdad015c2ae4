"""Observes the forward: batches, gathered weights, activations, samplers, and how a forward communicates."""

import weakref
from functools import partial
from itertools import product
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_leaves
from torch.utils.data.distributed import DistributedSampler

from zerosim.torch.check.clipping import additions
from zerosim.torch.check.names import plainly
from zerosim.torch.check.record import Batch, Epoch, Remark
from zerosim.torch.check.tensors import calls_itself, digest_of, script_line
from zerosim.torch.check.window import Window

COMMUNICATION = (
    "all_reduce", "all_reduce_coalesced", "all_gather", "all_gather_into_tensor", "all_gather_single",
    "all_gather_tensor", "all_to_all", "all_to_all_single", "all_to_all_single_autograd", "reduce_scatter_tensor",
    "reduce_scatter_single", "reduce_scatter", "broadcast", "reduce", "gather", "scatter")
MESSAGES = ("send", "recv")


class Forwards(Window):
    """The modules that are called."""

    def observe(self) -> None:
        super().observe()
        self.epoch: Epoch | None = None
        """The sampler that has begun an epoch since the last forward."""

        self.watch(DistributedSampler, "__iter__", self.sample)
        self.watch(nn.Module, "__setstate__", lambda args, _: self.names.copied.append(weakref.ref(args[0])))
        for owner, name in product((dist, dist.distributed_c10d, _functional_collectives), COMMUNICATION):
            self.watch(owner, name, partial(self.communicate, name))
        groups = dist.ProcessGroup, *dist.ProcessGroup.__subclasses__()  # backends in Python override its methods
        for owner, name in product(groups, MESSAGES):  # not dist.isend, which PyTorch knows by its identity
            self.watch(owner, name, partial(self.communicate, "messages"))
        self.watch_modules(self.enter, self.exit)

    def enter(self, module: Any, training: bool) -> None:
        if self.depth > 1 or not self.active or module in self.names.paths:
            return
        for new in self.know(module):
            if not isinstance(new, nn.modules.batchnorm._BatchNorm) and not self.facts.updates:
                for name, buffer in new._buffers.items():
                    if buffer is not None and buffer.numel():
                        path = f"{self.names.paths[new]}.{name}".lstrip(".")
                        self.number(digest_of([buffer]), self.facts.buffers, path)
        for wrapper in module.modules():  # DDP leaves out what a script names, such as parts of a table
            self.facts.experts += map(plainly, getattr(wrapper, "parameters_to_ignore", ()))
        self.facts.experts += [name for parameter in module.parameters() for name in self.names.within(parameter)
                               if getattr(parameter, "allreduce", True) is False]

    def exit(self, module: Any, args: Any, kwargs: Any, output: Any, training: bool) -> None:
        if not self.depth and self.epoch:
            if training:  # not the sampler of an evaluation
                self.facts.epochs.append(self.epoch)
            self.epoch = None
        if not self.active or not training or self.within:
            return
        if not self.depth and any(parameter.requires_grad for parameter in module.parameters()):
            batch = Batch(script_line(), samples=next((
                len(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor) and leaf.dim()), 0))
            self.number(digest_of((args, kwargs), not_parts=True), vars(batch), "given")
            self.number(digest_of(output, not_parts=True), vars(batch), "returned")
            self.batches.append(batch)
            root = next((leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor) and leaf.requires_grad),
                        None)
            if root is not None and not root.is_meta:
                self.forwards, self.half = self.forwards + 1, root.dtype is torch.float16
                number, returned = id(batch), self.returned
                root.register_hook(self.safe(lambda _: returned.add(number)))

    def sample(self, args: Any, kwargs: Any) -> None:
        sampler = args[0]
        if sampler.shuffle:
            self.epoch = Epoch(1 + sum(self.facts.updates.values()), script_line(), len(sampler.dataset), {
                "num_replicas": sampler.num_replicas, "seed": sampler.seed, "epoch": sampler.epoch})

    def communicate(self, name: str, args: Any, kwargs: Any) -> None:
        """Note communication of the script's own within a forward, and any message: ranks may hold parts of a model."""
        self.talks += 1
        if self.asleep or not (name == "messages" or calls_itself()):
            return
        value = args[0] if args else None
        if name == "all_reduce" and isinstance(value, torch.Tensor) and value.numel() == 1 and (
                kwargs.get("op", args[1] if len(args) > 1 else dist.ReduceOp.SUM) == dist.ReduceOp.SUM):
            self.note_sum(value)
        if name == "messages" or self.depth:
            kind = name if name == "messages" else "all_to_all" if "all_to_all" in name else "collectives"
            if kind not in self.facts.communicates:
                self.facts.communicates.append(kind)
        elif not self.clipping and not self.within:
            tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
            self.facts.sent += max((tensor.numel() for tensor in tensors), default=0)
            if not isinstance(value, torch.Tensor):
                return
            if value.numel() == 1:
                self.reduced = value.detach().clone()
            else:
                for step in self.open.values():  # the script reduces gradients only now, after it has clipped them
                    step.unclipped.clear()

    def note_sum(self, value: Any) -> None:
        """Note a scalar that the script sums over ranks: a loss, or the norm of gradients, which may be the same."""
        if value.grad_fn is not None:
            self.losses.append(value.grad_fn)
        parameters = [parameter for parameter in self.optimized() if parameter.grad is not None]
        if not parameters or not self.active or self.depth or self.within or self.clipping or any(
                isinstance(parameter, DTensor) or parameter in self.names.flat or parameter in self.names.parts
                for parameter in parameters):
            return
        square = sum(parameter.grad.double().square().sum() for parameter in parameters)
        rounds = 4 * (additions(parameters) + 3) * 2.0**-24
        same = ((value - square).abs() <= rounds * square) | ((value.square() - square).abs() <= rounds * square)
        remark = Remark("a norm is summed over replicas", "the script sums the norm of the whole gradient over ranks "
                        "that hold the same gradient: what it divides by is too large", script_line())
        self.number(torch.where(same & (square > 0), square, torch.nan), vars(remark), "value")
        self.remarks.append(remark)
