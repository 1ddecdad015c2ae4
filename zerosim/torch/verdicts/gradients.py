"""The gradients that a step is due: recorded calls computed again, and added over micro-batches and ranks.

`replayed` gives this rank's share. `Due` has all ranks' shares of one parameter, and from them their mean.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from zerosim.torch.verdicts.ranks import CheckRanks
from zerosim.torch.verdicts.reference import ForwardCall, FullModel, plain_bytes, tensors_in
from zerosim.torch.verdicts.rounding import gamma, tiny, unit_roundoff
from zerosim.torch.verdicts.split import PARTS, is_whole, local, part_of, whole_shape


class NotJudged(Exception):
    """The reason why a subject cannot be judged, in one line."""


@dataclass
class Share:
    """The contribution of one rank: for each parameter the sum of its gradients, and that of their sizes."""

    totals: dict[str, Any] = field(default_factory=dict)
    sizes: dict[str, Any] = field(default_factory=dict)
    each: dict[str, list[Any]] = field(default_factory=dict)
    """For the parameters that were asked for, the gradient of each backward."""
    backwards: int = 0
    exact: bool = True
    """Whether every forward gave the same bits as the script's."""
    far: bool = False
    """Whether outputs of the same shapes had values that are no rounding of them."""
    near: bool = True
    """Whether all outputs were equal, but for rounding."""
    why: str = ""
    ready: list[str] = field(default_factory=list)
    """The parameters in the order in which the first backward completed their gradients."""


def replayed(reference: FullModel, calls: list[ForwardCall], cleared: dict[str, int],
             keep: tuple[str, ...] = ()) -> Share:
    """This rank's share of the gradient, from the calls that a backward has reached.

    Calls of one backward are computed together, so that the engine adds them as it did. A parameter whose gradient was
    cleared takes no part in backwards before that. Sums are in the dtype of the gradient, left to right.
    """
    share = Share()
    for number in sorted({call.backward for call in calls if call.backward}):
        share.backwards += 1
        of_this = [call for call in calls if call.backward == number]
        with reference.computing():
            for each in reference.parameters.values():
                each.grad = None
            hooks = [each.register_post_accumulate_grad_hook(lambda _, name=name: share.ready.append(name))
                     for name, each in reference.parameters.items() if share.backwards == 1 and each.requires_grad]
            ends, gradients = [], []
            for call in of_this:
                outputs = [whole_value(each) for each in call.outputs]
                due = computed_again(reference, call, outputs)
                if reference.compiled:
                    share.why = "a compiled model computes gradients of different bits"
                if not alike(outputs, due):
                    share.exact = False
                    distance = distance_of(outputs, due)
                    share.far = share.far or FAR < distance < math.inf
                    share.near = share.near and distance <= min([FAR, *(rounding_of(one.dtype) for one in outputs)])
                    share.why = share.why or f"the forward of {call.line} has different bits when computed again"
                for index, part in call.gradients.items():
                    if index < len(due):
                        gradient = whole_value(part)
                        ends.append(due[index])
                        gradients.append(gradient)
                        # The gradient of an output included those that came through other outputs.
                        due[index].register_hook(lambda _, gradient=gradient: gradient)
            torch.autograd.backward(ends, gradients)
            for hook in hooks:
                hook.remove()
            for name, gradient in reference.gradients().items():
                if number >= cleared.get(name, 0):
                    add(share, name, gradient.to(reference.accumulated.get(name, gradient.dtype)), name in keep)
            for each in reference.parameters.values():
                each.grad = None
    return share


FAR = 0.05
"""The relative distance from which outputs, or gradients of parts, are not called rounded."""


def whole_value(tensor: Any) -> Any:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def rounding_of(dtype: Any) -> float:
    """The relative distance up to which results of a different order are called rounded, where no bound is proved."""
    return 4096 * unit_roundoff(dtype)


def distance_of(outputs: list[Any], due: list[Any]) -> float:
    """The largest relative distance of outputs; infinite if their shapes differ."""
    if [each.shape for each in outputs] != [each.shape for each in due]:
        return math.inf
    return max((float(torch.dist(one, other.detach()) / other.detach().norm().clamp_min(1e-30))
                for one, other in zip(outputs, due, strict=True)), default=0.0)


def alike(outputs: list[Any], due: list[Any]) -> bool:
    return len(due) == len(outputs) and all(
        one.shape == other.shape and torch.equal(one.nan_to_num(), other.detach().nan_to_num())
        for one, other in zip(outputs, due, strict=True))


def computed_again(reference: FullModel, call: ForwardCall, outputs: list[Any]) -> list[Any]:
    """The outputs of a call. A split model is tried with the heads of one rank, as recorded, and with all of them."""
    found: list[Any] | None = None
    failed, nearest = None, math.inf
    for whole in (False, True) if reference.cut else (False,):
        reference.whole_heads = whole
        try:
            due = [each for each in tensors_in(reference.forward(call)) if each.requires_grad]
        except RuntimeError as error:
            failed = error
            continue
        if alike(outputs, due):
            return due
        if found is None or distance_of(outputs, due) < nearest:
            found, nearest = due, distance_of(outputs, due)
    if found is None and failed is not None:
        raise failed
    return found or []


def add(share: Share, name: str, gradient: Any, keep: bool) -> None:
    if name in share.totals:
        if share.sizes[name] is share.totals[name]:
            share.sizes[name] = share.totals[name].abs()
        share.sizes[name] = share.sizes[name] + gradient.abs()
        share.totals[name] = share.totals[name] + gradient
    else:
        share.totals[name] = share.sizes[name] = gradient
    if keep:
        share.each.setdefault(name, []).append(gradient)


@dataclass
class MeanGradient:
    """A parameter's gradient from all ranks: `brought[r]` is rank r's sum, `sizes[r]` the sum of its terms' sizes.

    `rounds` is the most roundings that a term passes on its way; see `zerosim.torch.verdicts.rounding`.
    """

    brought: list[Any]
    sizes: list[Any]
    rounds: int
    dtype: Any
    factor: float

    @property
    def mean(self) -> Any:
        """The mean over the ranks in float64, after unscaling."""
        total = torch.zeros_like(self.brought[0], dtype=torch.float64)
        for each in self.brought:
            total += each
        return total * (self.factor / len(self.brought))

    def at(self, where: Any) -> "MeanGradient":
        """A part of the parameter."""
        return replace(self, brought=[part_of(each, where) for each in self.brought],
                       sizes=[part_of(each, where) for each in self.sizes])

    @property
    def size(self) -> Any:
        """Σ|t[i]| over all terms, in float64."""
        total = torch.zeros_like(self.sizes[0], dtype=torch.float64)
        for each in self.sizes:
            total += each.abs()
        return total

    def bound(self, dtype: Any, scale: float = 1.0) -> Any:
        """The largest rounding error of each element of `scale` times the mean."""
        paths = ((self.rounds, self.dtype), (4, dtype), (self.rounds, torch.float64))
        allowed = gamma(*paths) * abs(scale * self.factor) / len(self.brought) * self.size
        return allowed + tiny(self.rounds + 4, self.dtype, dtype)

    def apart(self, found: Any) -> Any:
        """Which elements of `found` are not the mean in any order of addition."""
        due, found = self.mean, found.cpu()
        outside = ~((found.double() - due).abs() <= self.bound(found.dtype))
        return outside & (found.isfinite() | due.isfinite()) if bool(outside.any()) else outside


def due_of(ranks: CheckRanks, peers: list[int], share: Share, most: int, name: str, shape: tuple[int, ...],
           dtypes: tuple[Any, Any], factor: float) -> MeanGradient:
    """All ranks' shares of a parameter; a rank without a gradient brings zeros.

    `dtypes` are those of a rank's sum and of the reduction, `most` is the largest number of backwards of a rank.
    """
    own, reduced = dtypes
    nothing = torch.zeros(shape, dtype=own)
    brought = ranks.tensors(share.totals.get(name, nothing).to(own))
    sizes = brought if most < 2 else ranks.tensors(share.sizes.get(name, nothing).to(own))
    return MeanGradient([brought[rank] for rank in peers], [sizes[rank] for rank in peers],
                        max(most, 1) * (len(peers) + 5) + 4, reduced, factor)


def place(tensor: Any) -> Any:
    """Where this rank's part of a sharded tensor stands in the whole one; raises `NotJudged` for other layouts."""
    if tensor in PARTS:
        return PARTS[tensor].where
    if not isinstance(tensor, DTensor):
        return tuple(slice(0, size) for size in tensor.shape)
    shape, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    if any(each.is_partial() for each in tensor.placements) or tuple(shape) != tuple(local(tensor).shape):
        raise NotJudged(f"a layout of {', '.join(map(str, tensor.placements))}")
    return tuple(slice(start, start + size) for start, size in zip(offset, shape, strict=True))


def wholes(ranks: CheckRanks, tensors: dict[str, Any]) -> dict[str, Any]:
    """The full tensors, put together from the parts of all ranks; those that are whole already are left out."""
    sharded = {name: each for name, each in tensors.items() if not is_whole(each)}
    found = {name: torch.empty(whole_shape(each), dtype=each.dtype) for name, each in sharded.items()}
    parts = {name: (place(each), plain_bytes(local(each))) for name, each in sharded.items() if local(each).numel()}
    for of_rank in ranks.everyone(parts) if sharded else ():
        for name, (where, data) in of_rank.items():
            part = part_of(found[name], where)
            part.copy_(torch.from_numpy(data).view(part.dtype).reshape(part.shape))
    return {name: each.to(tensors[name].device) for name, each in found.items()}
