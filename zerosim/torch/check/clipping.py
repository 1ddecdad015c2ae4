"""Observes what changes gradients between backward and update: clipping, and GradScaler's factor."""

from typing import Any

from zerosim.torch.check.record import Clip
from zerosim.torch.check.tensors import SCALERS, clipped_parameters, local, parameters_of, script_line
from zerosim.torch.check.window import Window

LANES = 8
"""PyTorch's norm of a contiguous float32 tensor adds its squares in at least so many sums, on every device."""


class Clipping:
    """The gradients before and after each call that clips: exactly those of the parameters that it was given."""

    def __init__(self, window: Window) -> None:
        self.window = window
        for scaler in SCALERS:
            window.watch(scaler, "unscale_", lambda args, _: window.notice_touched(args[1]),
                         self.after_unscaling)
        window.watch_clipping(self.before, self.after)

    def after_unscaling(self, _: Any, args: Any, kwargs: Any, result: Any) -> None:
        if args[0].is_enabled():
            self.window.step_of(args[1]).unscaled = True
            self.window.note_gradients(parameters_of(args[1]))

    def before(self, name: str | None, args: Any, kwargs: Any) -> Any:
        window = self.window
        if not window.active or window.clipping:
            return None
        chosen = clipped_parameters(args, kwargs)
        most = args[1] if len(args) > 1 else next(
            (kwargs[key] for key in ("max_norm", "clip_value") if key in kwargs), float("inf"))
        order = kwargs.get("norm_type", args[2] if len(args) > 2 and name != "clip_grads_with_norm_" else 2.0)
        own = {id(parameter) for parameter in chosen}
        concerned = [optimizer for optimizer, parameters in window.known()
                     if own & {id(parameter) for parameter in parameters}]
        clip = Clip(script_line(), float(most), 0.0 if name == "clip_grad_value_" else float(order),
                    any(window.step_of(optimizer).unscaled for optimizer in concerned),
                    name == "clip_grads_with_norm_", additions(chosen), window.sketches(chosen))
        for optimizer in concerned:
            window.notice_touched(optimizer)
            step, mine = window.step_of(optimizer), {
                name for parameter in parameters_of(optimizer) for name in window.names.within(parameter)}
            for part, sketched in clip.before.items():
                if part in mine:
                    step.unclipped.setdefault(part, sketched)
            step.clips.append(clip)
        return clip, chosen

    def after(self, seen: Any, args: Any, kwargs: Any, result: Any) -> None:
        if seen:
            seen[0].after = self.window.sketches(seen[1])
            self.window.note_gradients(seen[1])


def additions(parameters: Any) -> int:
    """The most additions on a square's way into PyTorch's norm of all gradients of these parameters."""
    gradients = [local(parameter.grad) for parameter in parameters if parameter.grad is not None]
    longest = max((-(-gradient.numel() // (LANES if gradient.is_contiguous() else 1)) for gradient in gradients),
                  default=0)
    return longest + len(gradients) + LANES
