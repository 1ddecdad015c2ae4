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
from zerosim.torch.check.tensors import SCALERS, below, local, loss_factor, script_line, version_of
from zerosim.torch.check.window import Seen, Window


class Backwards:
    """The terms of each parameter: one for each backward."""

    def __init__(self, window: Window) -> None:
        self.window = window
        self.hooked: Any = WeakIdKeyDictionary()
        """The hook on each parameter."""
        self.line = ""
        self.losses: list[tuple[Any, Any]] = []
        """The nodes of the losses that a GradScaler has multiplied since the last backward, with its factors."""
        self.scale: Any = None
        """The factor of the loss of this backward; None without a GradScaler."""

        window.watch(torch.autograd, "backward", self.before_backward, self.after_backward, "within")
        window.watch(torch.autograd, "grad", None, self.after_grad, "asleep")  # it runs hooks, and accumulates nothing
        for scaler in SCALERS:
            window.watch(scaler, "scale", None, self.scaled)
        window.leaving.callback(self.leave)

    def leave(self) -> None:
        """Take all hooks away."""
        self.losses, self.scale = [], None
        for handle in self.hooked.values():
            handle.remove()
        self.hooked.clear()

    def before_backward(self, args: Any, kwargs: Any) -> None:
        window = self.window
        if not window.active:
            return
        roots = args[0] if args else kwargs["tensors"]
        roots = [roots] if isinstance(roots, torch.Tensor) else list(roots)
        if not window.within:
            window.backwards, self.line = window.backwards + 1, script_line()
            self.notice_cleared()
            self.discard_used()
            window.version = sum(map(version_of, window.optimized()))
            window.counted = window.reduced if window.reduced is not None else window.counted
            window.factor = loss_factor(roots)
        window.names.note_lent(window.names.paths)
        leaves, nodes = below(roots)
        if not window.within:
            self.scale = next((scale for node, scale in self.losses if node in nodes), None)
            if nodes & {*window.losses} - {root.grad_fn for root in roots}:
                window.remarks.append(Remark(
                    "a loss is summed in place", "the script has summed a part of the loss over ranks in place, which "
                    "autograd does not see: gradients are of this rank's part, divided as if they were of all",
                    self.line))
            self.losses, window.losses = [], []
        for leaf in leaves:
            if leaf not in self.hooked and isinstance(leaf, nn.Parameter):
                self.hooked[leaf] = leaf.register_hook(window.safe(partial(self.arrived, weakref.ref(leaf))))

    def after_backward(self, _: Any, args: Any, kwargs: Any, result: Any) -> None:
        window = self.window
        if window.active and not window.within:
            window.gradients = {}
            window.note_gradients(window.optimized())

    def arrived(self, leaf: "weakref.ref[Any]", gradient: Any, by_hand: bool = False) -> None:
        """A gradient that is about to be accumulated."""
        window, parameter = self.window, leaf()
        if not window.active or gradient is None or parameter is None:
            return
        if gradient.layout is not torch.strided:
            window.reasons.append("sparse gradients")
            return
        names = window.names
        if parameter not in names.of and parameter not in names.flat:
            if not any(known is parameter for known in window.optimized()):
                window.facts.unknown.append(f"of shape {tuple(parameter.shape)}")
            names.of[parameter] = f"?{len(names.of)}"
        if isinstance(gradient, DTensor):  # FSDP2 computes with plain tensors: only tensor parallelism has these here
            window.facts.row = sorted(gradient.device_mesh.mesh.flatten().tolist())
        own = names.lent.get(parameter, parameter).grad
        for name, values, shape, key in names.pieces(parameter, gradient):
            for step in window.open.values() if not by_hand else ():
                if name in step.unclipped:  # what was clipped before is cleared, or is added to
                    step.unclipped.pop(name)
                    step.clips = [clip for clip in step.clips if name not in clip.before]
                    if own is not None:
                        window.number(local(own).any(), vars(step), "touched")
            window.terms.setdefault(name, []).append(Seen(Term(
                window.sketched(values, shape, key, gradient), window.backwards, self.line, window.version,
                by_hand=by_hand), len(window.optimizers), self.scale))

    def after_grad(self, _: Any, args: Any, kwargs: Any, result: Any) -> None:
        """What it returns for parameters may be what the script puts into their `grad`."""
        window = self.window
        inputs = args[1] if len(args) > 1 else kwargs["inputs"]
        if window.active and not window.within and result and not kwargs.get("create_graph"):
            window.backwards, self.line = window.backwards + 1, script_line()
            inputs = [inputs] if isinstance(inputs, torch.Tensor) else inputs
            for leaf, gradient in zip(inputs, result, strict=False):
                if isinstance(leaf, nn.Parameter):
                    self.arrived(weakref.ref(leaf), gradient, by_hand=True)

    def notice_cleared(self) -> None:
        """Mark the terms whose gradient was there after the last backward, and is not any more, or is 0."""
        window = self.window
        for parameter, bits in ((reference(), bits) for reference, bits in window.gradients.values()):
            if parameter is None or bits is None:
                continue
            for name in window.names.within(parameter):
                for seen in window.terms.get(name, ()):
                    if parameter.grad is None:
                        seen.term.cleared = True
                    elif not seen.term.cleared and local(parameter.grad).numel():
                        window.number(~local(parameter.grad).any(), vars(seen.term), "cleared")

    def discard_used(self) -> None:
        """Forget the terms that updates have used: all of them, if several optimizers have the parameter."""
        window = self.window
        owners: dict[str, set[int]] = {}
        for optimizer, parameters in window.known() if len(window.optimizers) > 1 else ():
            for parameter in parameters:
                for name in window.names.within(parameter):
                    owners.setdefault(name, set()).add(window.step_of(optimizer).optimizer)
        window.terms = {name: left for name, terms in window.terms.items() if (left := [
            seen for seen in terms if not seen.used
            or (not seen.term.cleared and any(number < seen.optimizers and number not in seen.used
                                              for number in owners.get(name, ())))])}

    def scaled(self, _: Any, args: Any, kwargs: Any, result: Any) -> None:
        if args[0].is_enabled() and args[0]._scale is not None:
            scale = args[0]._scale.detach().clone()
            self.losses += [(loss.grad_fn, scale) for loss in tree_leaves(result) if isinstance(loss, torch.Tensor)]
