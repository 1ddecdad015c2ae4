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
from zerosim.torch.check.tensors import calls_itself, digest_of, samples_in, script_line
from zerosim.torch.check.window import Window

COMMUNICATION = (
    "all_reduce", "all_reduce_coalesced", "all_gather", "all_gather_into_tensor", "all_gather_single",
    "all_gather_tensor", "all_to_all", "all_to_all_single", "all_to_all_single_autograd", "reduce_scatter_tensor",
    "reduce_scatter_single", "reduce_scatter", "broadcast", "reduce", "gather", "scatter")
MESSAGES = ("send", "recv")


class Forwards:
    """The modules that are called."""

    def __init__(self, window: Window) -> None:
        self.window = window
        self.epoch: Epoch | None = None
        """The sampler that has begun an epoch since the last forward."""

        window.watch(DistributedSampler, "__iter__", self.sample)
        window.watch(nn.Module, "__setstate__", lambda args, _: window.names.copied.append(weakref.ref(args[0])))
        for owner, name in product((dist, dist.distributed_c10d, _functional_collectives), COMMUNICATION):
            window.watch(owner, name, partial(self.communicate, name))
        groups = dist.ProcessGroup, *dist.ProcessGroup.__subclasses__()  # backends in Python override its methods
        for owner, name in product(groups, MESSAGES):  # not dist.isend, which PyTorch knows by its identity
            window.watch(owner, name, partial(self.communicate, "messages"))
        window.watch_modules(self.enter, self.exit)

    def enter(self, module: Any, training: bool) -> None:
        window = self.window
        if window.depth > 1 or not window.active or module in window.names.paths:
            return
        for new in window.names.know(module):
            if type(new).__name__ == "DeepSpeedEngine":
                window.facts.trainer, window.facts.group = "DeepSpeed", list(range(dist.get_world_size()))
                window.engine_seen(type(new))
            if not isinstance(new, nn.modules.batchnorm._BatchNorm) and not window.facts.updates:
                for name, buffer in new._buffers.items():
                    if buffer is not None and buffer.numel():
                        path = f"{window.names.paths[new]}.{name}".lstrip(".")
                        window.number(digest_of([buffer]), window.facts.buffers, path)
        for wrapper in module.modules():  # DDP leaves out what a script names, such as parts of a table
            window.facts.experts += map(plainly, getattr(wrapper, "parameters_to_ignore", ()))
        window.facts.experts += [name for parameter in module.parameters() for name in window.names.within(parameter)
                                 if getattr(parameter, "allreduce", True) is False]

    def exit(self, module: Any, args: Any, kwargs: Any, output: Any, training: bool) -> None:
        window = self.window
        if not window.depth and self.epoch:
            if training:  # not the sampler of an evaluation
                window.facts.epochs.append(self.epoch)
            self.epoch = None
        if not window.active or not training or window.within:
            return
        if not window.depth and any(parameter.requires_grad for parameter in module.parameters()):
            batch = Batch(script_line(), samples=samples_in((args, kwargs)))
            window.number(digest_of((args, kwargs), not_parts=True), vars(batch), "given")
            window.number(digest_of(output, not_parts=True), vars(batch), "returned")
            window.batches.append(batch)
            root = next((leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor) and leaf.requires_grad),
                        None)
            if root is not None and not root.is_meta:
                window.forwards, window.half = window.forwards + 1, root.dtype is torch.float16
                number, returned = id(batch), window.returned
                root.register_hook(window.safe(lambda _: returned.add(number)))

    def sample(self, args: Any, kwargs: Any) -> None:
        sampler = args[0]
        if sampler.shuffle:
            self.epoch = Epoch(1 + sum(self.window.facts.updates.values()), script_line(), len(sampler.dataset), {
                "num_replicas": sampler.num_replicas, "seed": sampler.seed, "epoch": sampler.epoch})

    def communicate(self, name: str, args: Any, kwargs: Any) -> None:
        """Note communication of the script's own within a forward, and any message: ranks may hold parts of a model."""
        window = self.window
        window.talks += 1
        if window.asleep or not (name == "messages" or calls_itself()):
            return
        value, kind = args[0] if args else None, "all_to_all" if "all_to_all" in name else "collectives"
        if name == "all_reduce" and isinstance(value, torch.Tensor) and value.numel() == 1 and (
                kwargs.get("op", args[1] if len(args) > 1 else dist.ReduceOp.SUM) == dist.ReduceOp.SUM):
            self.note_sum(value)
        if name == "messages" or window.depth:
            kind = name if name == "messages" else kind
            if kind not in window.facts.communicates:
                window.facts.communicates.append(kind)
        elif not window.clipping and not window.within:
            tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
            window.facts.sent += max((tensor.numel() for tensor in tensors), default=0)
            if not isinstance(value, torch.Tensor):
                return
            if value.numel() == 1:
                window.reduced = value.detach().clone()
            else:
                for step in window.open.values():  # the script reduces gradients only now, after it has clipped them
                    step.unclipped.clear()

    def note_sum(self, value: Any) -> None:
        """Note a scalar that the script sums over ranks: a loss, or the norm of gradients, which may be the same."""
        window = self.window
        if value.grad_fn is not None:
            window.losses.append(value.grad_fn)
        parameters = [parameter for parameter in window.optimized() if parameter.grad is not None]
        if not parameters or not window.active or window.depth or window.within or window.clipping or any(
                isinstance(parameter, DTensor) or parameter in window.names.flat or parameter in window.names.parts
                for parameter in parameters):
            return
        square = sum(parameter.grad.double().square().sum() for parameter in parameters)
        rounds = 4 * (additions(parameters) + 3) * 2.0**-24
        same = ((value - square).abs() <= rounds * square) | ((value.square() - square).abs() <= rounds * square)
        remark = Remark("a norm is summed over replicas", "the script sums the norm of the whole gradient over ranks "
                        "that hold the same gradient: what it divides by is too large", script_line())
        window.number(torch.where(same & (square > 0), square, torch.nan), vars(remark), "value")
        window.remarks.append(remark)
