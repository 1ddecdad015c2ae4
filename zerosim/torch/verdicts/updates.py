"""Predicts the update of an optimizer: its own step, on copies of one parameter and state at a time."""

import copy
from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field
from typing import Any

import torch

from zerosim.torch.verdicts.findings import NOT_JUDGED, SAME_BITS
from zerosim.torch.verdicts.reference import digest, local, local_gradient


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
