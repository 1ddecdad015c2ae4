"""Judges `clip_grad_norm_`, and predicts the update of an optimizer.

Clipping must be on all ranks, after unscaling, and by the norm of the whole gradient. The update is the optimizer's own
step, on copies of one parameter and state at a time.
"""

import copy
from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field
from typing import Any

import torch

from zerosim.torch.verdicts.findings import NOT_JUDGED, SAME_BITS, WITHIN, Book
from zerosim.torch.verdicts.gradients import MeanGradient
from zerosim.torch.verdicts.ranks import CheckRanks
from zerosim.torch.verdicts.reference import digest
from zerosim.torch.verdicts.rounding import gamma
from zerosim.torch.verdicts.session import Followed
from zerosim.torch.verdicts.split import local, local_gradient

LOOSE = 0.25
"""The γ from which the bound of a norm says too little: only a norm of one shard is then a finding."""


def unclipped(followed: Followed, parameter: Any) -> Any:
    """This rank's part of the gradient before clipping, or as it is if it was reduced later; None if there is none."""
    for clip in () if followed.reduced_clipped else followed.clips:
        if id(parameter) in clip.before:
            return clip.before[id(parameter)]
    return local_gradient(parameter)


@dataclass
class ClipNorms:
    """One clipping as a rank knows it: the norm that it was told, that of its own part, and the true one."""

    told: float
    own: float
    due: float
    slack: float
    """The rounding of the gradient itself."""
    elements: int
    dtype: Any
    off: str
    """The first parameter whose clipped gradient is not the unclipped one times the coefficient."""


def clip_norms(followed: Followed, named: dict[str, Any], means: dict[str, MeanGradient]) -> dict[int, ClipNorms]:
    """The clippings by a norm, by their number among those of this step."""
    found = {}
    for number, clip in enumerate(followed.clips):
        names = [name for name, each in named.items() if id(each) in clip.before and name in means]
        if not names or clip.norm is None:
            continue
        due = torch.stack([torch.linalg.vector_norm(means[name].mean, clip.order) for name in names])
        own = torch.stack([torch.linalg.vector_norm(clip.before[id(named[name])].double(), clip.order)
                           for name in names if clip.before[id(named[name])] is not None] or [torch.zeros(1)])
        slack = torch.stack([torch.linalg.vector_norm(means[name].bound(named[name].dtype), clip.order)
                             for name in names])
        norm = clip.norm.full_tensor() if hasattr(clip.norm, "full_tensor") else clip.norm
        coefficient = (clip.most / (norm + 1e-6)).clamp(max=1.0) if clip.most < float("inf") else torch.ones(())
        off = ""
        for name in names if number == len(followed.clips) - 1 and clip.unscaled == followed.unscaled else ():
            before = clip.before[id(named[name])]
            if before is None:
                continue
            now = local_gradient(named[name])
            after = before.double() * coefficient.double()
            near = gamma((4, before.dtype)) * after.abs() + torch.finfo(before.dtype).tiny
            if not off and ((now.double() - after).abs() > near).any():
                off = name
        all_own, all_due, all_slack = (float(torch.linalg.vector_norm(each, clip.order)) for each in (own, due, slack))
        found[number] = ClipNorms(float(norm), all_own, all_due, all_slack,
                                  sum(means[name].brought[0].numel() for name in names), norm.dtype, off)
    return found


def judge_clipping(book: Book, ranks: CheckRanks, followed: Followed, mine: dict[int, ClipNorms], peers: list[int],
                   step: int, scale: float, wrong: bool) -> None:
    """Compare the clippings of all ranks; after a `wrong` gradient their norms are not compared."""
    facts = [(each.line, each.unscaled, each.most) for each in followed.clips]
    of_all = ranks.everyone((facts, mine))
    told = [of_all[rank] for rank in peers]
    counts = [len(clips) for clips, _ in told]
    if not any(counts):
        return
    if len(set(counts)) > 1:
        rank = max(range(len(peers)), key=lambda index: (counts.count(counts[index]) < len(peers) / 2, counts[index]))
        clips = told[max(range(len(peers)), key=counts.__getitem__)][0]
        book.find("clipping", step, peers[rank], "clipping on one rank",
                          f"ranks {peers} have called clip_grad_norm_ {counts} times", line=clips[0][0])
        return
    for number, ((line, unscaled, _), *_) in enumerate(zip(*(clips for clips, _ in told), strict=True)):
        if followed.unscaled not in (1.0, unscaled):
            book.find("clipping", step, peers[0], "clipping before unscaling",
                              f"clip_grad_norm_ saw gradients that GradScaler had multiplied by {scale:g}; call "
                              "scaler.unscale_(optimizer) before it", line=line)
            return
        for rank, (_, found) in zip(peers, told, strict=True):
            if wrong or number not in found:
                book.judge("clipping", NOT_JUDGED, "the gradient is not what it should be" if wrong else "by value")
                continue
            each = found[number]
            allowed = gamma((each.elements + 8, each.dtype))
            off = abs(each.told - each.due) > allowed * each.due + each.slack
            if each.told != each.told or each.due == 0:
                book.judge("clipping", NOT_JUDGED, "the norm is not finite")
            elif abs(each.told - each.own) <= 1e-5 * each.own and abs(each.own - each.due) > 1e-4 * each.due:
                book.find("clipping", step, rank, "clipping by the local norm",
                                  f"the norm is {each.told:.6g}, that of this rank's shard; the whole gradient's is "
                                  f"{each.due:.6g}, {each.due / each.told:.3g} times as large", line=line)
            elif off and allowed < LOOSE:
                book.find("clipping", step, rank, "another norm",
                                  f"clip_grad_norm_ returned {each.told:.9g}; the gradient's norm is {each.due:.9g}",
                                  line=line)
            elif each.off:
                book.judge("clipping", NOT_JUDGED, f"the gradient of {each.off} was changed after clipping")
            elif allowed >= LOOSE:
                book.judge("clipping", NOT_JUDGED, f"the bound of a norm of {each.elements} elements is too wide")
            else:
                book.judge("clipping", WITHIN, "the norm of the whole gradient, by the bound γ")


@dataclass
class Prediction:
    """The digests of updated parameters by name, before the update; or why there are none."""

    due: dict[str, str] = field(default_factory=dict)
    why: str = ""

    def verdict(self, digests: dict[str, str]) -> tuple[str, str, str]:
        """Verdict and reason, and the first parameter that differs, by the digests after the update."""
        if self.why:
            return NOT_JUDGED, self.why, ""
        for name, due in self.due.items():
            if digests[name] != due:
                text = f"{name} is not what the same optimizer makes of it with this gradient, state and settings"
                return "", text, name
        return SAME_BITS, "the same optimizer on copies of each parameter", ""


def predicted(optimizer: Any, named: dict[str, Any]) -> Prediction:
    """Update copies, one parameter at a time; nothing of the script changes."""
    working = getattr(optimizer, "optim", optimizer)
    kind: Any = type(working)
    if not kind.__module__.startswith("torch.optim"):
        return Prediction(why=f"{kind.__name__} is not one of torch.optim's optimizers")
    if kind is torch.optim.LBFGS:
        return Prediction(why="LBFGS updates all at once")
    found = Prediction()
    names = {id(each): name for name, each in named.items()}
    for group in working.param_groups:
        for each in group["params"]:
            if id(each) in names and each.grad is not None:
                found.due[names[id(each)]] = digest([one_update(working, group, each)])
    return found


def one_update(optimizer: Any, group: dict[str, Any], parameter: Any) -> Any:
    """This rank's part of `parameter` after a step of the same class with the same settings and state."""
    made = torch.nn.Parameter(local(parameter).detach().clone(), requires_grad=parameter.requires_grad)
    made.grad = local_gradient(parameter).clone()
    alone = object.__new__(type(optimizer))
    vars(alone).update({key: value for key, value in vars(optimizer).items() if key not in ("step", "state")})
    for key in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
        vars(alone)[key] = OrderedDict()
    state = {key: local(value).detach().clone() if isinstance(value, torch.Tensor) else copy.deepcopy(value)
             for key, value in optimizer.state.get(parameter, {}).items()}
    vars(alone)["state"] = defaultdict(dict, {made: state} if state else {})
    vars(alone)["param_groups"] = [{**group, "params": [made]}]
    kind: Any = type(optimizer)
    getattr(kind.step, "__wrapped__", kind.step)(alone)
    return made
