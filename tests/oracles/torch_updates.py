"""PyTorch's answers to `updates`."""

import numpy as np
import torch
from torch import nn

from tests.oracles import updates


def optimizer(name, weights, h):
    """The optimizer of torch that a case means."""
    decay, rate = h.get("weight_decay", 0.0), h["learning_rate"]
    if name in ("sgd", "momentum"):
        return torch.optim.SGD([weights], rate, momentum=h.get("momentum", 0.0), weight_decay=decay)
    kind = torch.optim.Adam if name == "adam" else torch.optim.AdamW
    return kind([weights], rate, h.get("betas", (0.9, 0.999)), h.get("epsilon", 1e-8), decay)


def updated():
    """The weights after each step, one optimizer after another."""
    found = []
    for name, h in updates.OPTIMIZERS:
        first, gradients = map(torch.from_numpy, updates.trajectory())
        weights = nn.Parameter(first)
        rule = optimizer(name, weights, h)
        for gradient in gradients:
            weights.grad = gradient.clone()
            rule.step()
            found.append(weights.detach().clone())
    return torch.stack(found).view(len(updates.OPTIMIZERS), updates.STEPS, -1).numpy()


def clipped():
    """For each norm to clip at: the norm found, then all gradients after."""
    found = []
    for norm in updates.CLIP_NORMS:
        parameters = [nn.Parameter(torch.zeros(len(g))) for g in updates.gradients_to_clip()]
        for parameter, gradient in zip(parameters, updates.gradients_to_clip(), strict=True):
            parameter.grad = torch.from_numpy(gradient)
        total = nn.utils.clip_grad_norm_(parameters, norm)
        found.append(torch.cat([total.reshape(1), *(p.grad for p in parameters)]))
    return torch.stack(found).numpy()


def loss_scales():
    """The exponent of the loss scale after each step, and whether the step was taken, where each gradient is 1."""
    weight = nn.Parameter(torch.zeros(1))
    rule = torch.optim.SGD([weight], 1.0)
    scaler = torch.amp.GradScaler("cpu")
    exponents, taken = [], []
    for overflows in updates.overflows():
        before = weight.item()
        weight.grad = scaler.scale(torch.ones(1)) * (float("inf") if overflows else 1.0)
        scaler.step(rule)
        scaler.update()
        exponents.append(int(np.log2(scaler.get_scale())))
        taken.append(before - weight.item())
    assert set(taken) == {0.0, 1.0}
    return np.array(exponents, np.int8), np.array(taken, bool)


def ask():
    exponents, taken = loss_scales()
    return {"updates": updated(), "clipped": clipped(), "loss scales": exponents, "taken": taken}
