"""Observes the backward: each gradient before it is accumulated, so before DDP, FSDP or DeepSpeed reduce it.

`Tensor.register_hook` runs before a gradient is accumulated. The parameters are found by walking the graph below each
loss.
"""

import weakref
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from zerosim.torch.check.record import Remark, Term
from zerosim.torch.check.tensors import SCALERS, below, local, loss_factor, script_line
from zerosim.torch.check.window import Seen, Window


class Backwards(Window):
    """The terms of each parameter: one for each backward."""

    def observe(self) -> None:
        super().observe()
        self.hooked: Any = WeakIdKeyDictionary()
        """The hook on each parameter."""
        self.line = ""
        self.scaled_losses: list[tuple[Any, Any]] = []
        """The nodes of the losses that a GradScaler has multiplied since the last backward, with its factors."""
        self.scale: Any = None
        """The factor of the loss of this backward; None without a GradScaler."""

        self.watch(torch.autograd, "backward", self.before_backward, self.after_backward, "within")
        self.watch(torch.autograd, "grad", None, self.after_grad, "asleep")  # it runs hooks, and accumulates nothing
        for scaler in SCALERS:
            self.watch(scaler, "scale", None, self.scaled)
        self.leaving.callback(self.unhook)

    def unhook(self) -> None:
        """Take all hooks away."""
        self.scaled_losses, self.scale = [], None
        for handle in self.hooked.values():
            handle.remove()
        self.hooked.clear()

    def before_backward(self, args: Any, kwargs: Any) -> None:
        if not self.active:
            return
        roots = args[0] if args else kwargs["tensors"]
        roots = [roots] if isinstance(roots, torch.Tensor) else list(roots)
        if not self.within:
            self.backwards, self.line = self.backwards + 1, script_line()
            self.notice_cleared()
            self.discard_used()
            self.version = sum(weight._version + local(weight)._version for weight in self.optimized())
            self.counted = self.reduced if self.reduced is not None else self.counted
            self.factor = loss_factor(roots)
        self.names.note_lent(self.names.paths)
        leaves, nodes = below(roots)
        if not self.within:
            self.scale = next((scale for node, scale in self.scaled_losses if node in nodes), None)
            if nodes & {*self.losses} - {root.grad_fn for root in roots}:
                self.remarks.append(Remark(
                    "a loss is summed in place", "the script has summed a part of the loss over ranks in place, which "
                    "autograd does not see: gradients are of this rank's part, divided as if they were of all",
                    self.line))
            self.scaled_losses, self.losses = [], []
        for leaf in leaves:
            if leaf not in self.hooked and isinstance(leaf, nn.Parameter):
                self.hooked[leaf] = leaf.register_hook(self.safe(partial(self.arrived, weakref.ref(leaf))))

    def after_backward(self, _: Any, args: Any, kwargs: Any, result: Any) -> None:
        if self.active and not self.within:
            self.gradients = {}
            self.note_gradients(self.optimized())

    def arrived(self, leaf: "weakref.ref[Any]", gradient: Any, by_hand: bool = False) -> None:
        """A gradient that is about to be accumulated."""
        parameter = leaf()
        if not self.active or gradient is None or parameter is None:
            return
        if gradient.layout is not torch.strided:
            self.reasons.append("sparse gradients")
            return
        names = self.names
        if parameter not in names.of and parameter not in names.flat:
            if not any(known is parameter for known in self.optimized()):
                self.facts.unknown.append(f"of shape {tuple(parameter.shape)}")
            names.of[parameter] = f"?{len(names.of)}"
        if isinstance(gradient, DTensor):  # FSDP2 computes with plain tensors: only tensor parallelism has these here
            self.facts.row = sorted(gradient.device_mesh.mesh.flatten().tolist())
        own = names.lent.get(parameter, parameter).grad
        for name, values, shape, key in names.pieces(parameter, gradient):
            for step in self.open.values() if not by_hand else ():
                if name in step.unclipped:  # what was clipped before is cleared, or is added to
                    step.unclipped.pop(name)
                    step.clips = [clip for clip in step.clips if name not in clip.before]
                    if own is not None:
                        self.number(local(own).any(), vars(step), "touched")
            self.terms.setdefault(name, []).append(Seen(Term(
                self.sketched(values, shape, key, gradient), self.backwards, self.line, self.version,
                by_hand=by_hand), len(self.optimizers), self.scale))

    def after_grad(self, _: Any, args: Any, kwargs: Any, result: Any) -> None:
        """What it returns for parameters may be what the script puts into their `grad`."""
        inputs = args[1] if len(args) > 1 else kwargs["inputs"]
        if self.active and not self.within and result and not kwargs.get("create_graph"):
            self.backwards, self.line = self.backwards + 1, script_line()
            inputs = [inputs] if isinstance(inputs, torch.Tensor) else inputs
            for leaf, gradient in zip(inputs, result, strict=False):
                if isinstance(leaf, nn.Parameter):
                    self.arrived(weakref.ref(leaf), gradient, by_hand=True)

    def notice_cleared(self) -> None:
        """Mark the terms whose gradient was there after the last backward, and is not any more, or is 0."""
        for parameter, bits in ((reference(), bits) for reference, bits in self.gradients.values()):
            if parameter is None or bits is None:
                continue
            for name in self.names.within(parameter):
                for seen in self.terms.get(name, ()):
                    if parameter.grad is None:
                        seen.term.cleared = True
                    elif not seen.term.cleared and local(parameter.grad).numel():
                        self.number(~local(parameter.grad).any(), vars(seen.term), "cleared")

    def discard_used(self) -> None:
        """Forget the terms that updates have used: all of them, if several optimizers have the parameter."""
        owners: dict[str, set[int]] = {}
        for optimizer, parameters in self.known() if len(self.optimizers) > 1 else ():
            for parameter in parameters:
                for name in self.names.within(parameter):
                    owners.setdefault(name, set()).add(self.step_of(optimizer).optimizer)
        self.terms = {name: left for name, terms in self.terms.items() if (left := [
            seen for seen in terms if not seen.used
            or (not seen.term.cleared and any(number < seen.optimizers and number not in seen.used
                                              for number in owners.get(name, ())))])}

    def scaled(self, _: Any, args: Any, kwargs: Any, result: Any) -> None:
        if args[0].is_enabled() and args[0]._scale is not None:
            scale = args[0]._scale.detach().clone()
            self.scaled_losses += [(loss.grad_fn, scale) for loss in tree_leaves(result)
                                   if isinstance(loss, torch.Tensor)]
