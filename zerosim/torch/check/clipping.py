"""Observes what changes gradients between backward and update: clipping, and GradScaler's factor."""

from typing import Any

from zerosim.torch.check.record import Clip
from zerosim.torch.check.tensors import SCALERS, clipped_parameters, local, parameters_of, script_line
from zerosim.torch.check.window import Window

LANES = 8
"""PyTorch's norm of a contiguous float32 tensor adds its squares in at least so many sums, on every device."""


class Clipping(Window):
    """The gradients before and after each call that clips: exactly those of the parameters that it was given."""

    def observe(self) -> None:
        super().observe()
        for scaler in SCALERS:
            self.watch(scaler, "unscale_", lambda args, _: self.notice_touched(args[1]), self.after_unscaling)
        self.watch_clipping(self.before_clipping, self.after_clipping)

    def after_unscaling(self, _: Any, args: Any, kwargs: Any, result: Any) -> None:
        if args[0].is_enabled():
            self.step_of(args[1]).unscaled = True
            self.note_gradients(parameters_of(args[1]))

    def before_clipping(self, name: str | None, args: Any, kwargs: Any) -> Any:
        if not self.active or self.clipping:
            return None
        chosen = clipped_parameters(args, kwargs)
        most = args[1] if len(args) > 1 else next(
            (kwargs[key] for key in ("max_norm", "clip_value") if key in kwargs), float("inf"))
        order = kwargs.get("norm_type", args[2] if len(args) > 2 and name != "clip_grads_with_norm_" else 2.0)
        own = {id(parameter) for parameter in chosen}
        concerned = [optimizer for optimizer, parameters in self.known()
                     if own & {id(parameter) for parameter in parameters}]
        clip = Clip(script_line(), float(most), 0.0 if name == "clip_grad_value_" else float(order),
                    any(self.step_of(optimizer).unscaled for optimizer in concerned),
                    name == "clip_grads_with_norm_", additions(chosen), self.sketches(chosen))
        for optimizer in concerned:
            self.notice_touched(optimizer)
            step, names = self.step_of(optimizer), {
                name for parameter in parameters_of(optimizer) for name in self.names.within(parameter)}
            for part, sketched in clip.before.items():
                if part in names:
                    step.unclipped.setdefault(part, sketched)
            step.clips.append(clip)
        return clip, chosen

    def after_clipping(self, seen: Any, args: Any, kwargs: Any, result: Any) -> None:
        if seen:
            seen[0].after = self.sketches(seen[1])
            self.note_gradients(seen[1])


def additions(parameters: Any) -> int:
    """The most additions on a square's way into PyTorch's norm of all gradients of these parameters."""
    gradients = [local(parameter.grad) for parameter in parameters if parameter.grad is not None]
    longest = max((-(-gradient.numel() // (LANES if gradient.is_contiguous() else 1)) for gradient in gradients),
                  default=0)
    return longest + len(gradients) + LANES
