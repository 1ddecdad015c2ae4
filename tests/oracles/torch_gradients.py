"""Asks PyTorch what `cases` holds: run it where torch is installed.

    python -m tests.oracles.torch_gradients            writes torch_answers.npz anew
    python -m tests.oracles.torch_gradients FILE       writes live answers to FILE and checks the recorded ones by them

Modules are in one dtype throughout, without autocast; the loss is in float32, from 16-bit outputs.
"""

import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import nn

from tests.oracles import cases
from tests.oracles.answers import RECORDED, disagreements, read

ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": lambda: nn.GELU(approximate="tanh")}
LOSSES = {"cross_entropy": nn.functional.cross_entropy, "mean_squared_error": nn.functional.mse_loss}


def module(network):
    """The network as PyTorch's layers, with the parameters of the case."""
    layers = []
    for (inputs, outputs), (weight, bias) in zip(pairwise(network.widths), network.parameters(), strict=True):
        linear = nn.Linear(inputs, outputs)
        linear.load_state_dict({"weight": torch.from_numpy(weight), "bias": torch.from_numpy(bias)})
        layers += [linear, ACTIVATIONS[network.activation]()]
    return nn.Sequential(*layers[:-1])


def answers_of(network, dtype):
    """The loss, in float32, and outputs and gradients in one vector of `dtype`."""
    trained = module(network).to(dtype)
    x, targets = map(torch.from_numpy, network.batch())
    outputs = trained(x.to(dtype))
    loss = LOSSES[network.loss](outputs.float(), targets)
    loss.backward()
    return loss.detach(), torch.cat([t.detach().flatten() for t in (outputs, *(p.grad for p in trained.parameters()))])


def stored(tensor):
    """As NumPy can keep it: bfloat16 as the bits of its numbers."""
    return tensor.view(torch.uint16).numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy()


def networks():
    """Of each dtype: the losses of all networks, and all their vectors one after another."""
    found = {}
    for name in cases.DTYPES:
        dtype = getattr(torch, name)
        losses, vectors = zip(*(answers_of(network, dtype) for network in cases.NETWORKS), strict=True)
        found[f"{name} losses"] = torch.stack(losses).numpy()
        found[f"{name} answers"] = stored(torch.cat(vectors))
    return found


def optimizer(name, weights, h):
    """The optimizer of torch that a case means."""
    decay, rate = h.get("weight_decay", 0.0), h["learning_rate"]
    if name in ("sgd", "momentum"):
        return torch.optim.SGD([weights], rate, momentum=h.get("momentum", 0.0), weight_decay=decay)
    kind = torch.optim.Adam if name == "adam" else torch.optim.AdamW
    return kind([weights], rate, h.get("betas", (0.9, 0.999)), h.get("epsilon", 1e-8), decay)


def updates():
    """The weights after each step, one optimizer after another."""
    found = []
    for name, h in cases.OPTIMIZERS:
        first, gradients = map(torch.from_numpy, cases.trajectory())
        weights = nn.Parameter(first)
        rule = optimizer(name, weights, h)
        for gradient in gradients:
            weights.grad = gradient.clone()
            rule.step()
            found.append(weights.detach().clone())
    return torch.stack(found).view(len(cases.OPTIMIZERS), cases.STEPS, -1).numpy()


def clipped():
    """For each norm to clip at: the norm found, then all gradients after."""
    found = []
    for norm in cases.CLIP_NORMS:
        parameters = [nn.Parameter(torch.zeros(len(g))) for g in cases.gradients_to_clip()]
        for parameter, gradient in zip(parameters, cases.gradients_to_clip(), strict=True):
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
    for overflows in cases.overflows():
        before = weight.item()
        weight.grad = scaler.scale(torch.ones(1)) * (float("inf") if overflows else 1.0)
        scaler.step(rule)
        scaler.update()
        exponents.append(int(np.log2(scaler.get_scale())))
        taken.append(before - weight.item())
    assert set(taken) == {0.0, 1.0}
    return np.array(exponents, np.int8), np.array(taken, bool)


def ask():
    """All answers, and whose they are."""
    exponents, taken = loss_scales()
    return {
        "torch": np.array(torch.__version__.partition("+")[0]), **networks(),
        "updates": updates(), "clipped": clipped(), "loss scales": exponents, "taken": taken,
    }


def main(arguments):
    path = Path(arguments[0]) if arguments else RECORDED
    path.parent.mkdir(exist_ok=True)
    np.savez_compressed(path, **ask())
    found = disagreements(read(path), read(RECORDED))
    print("\n".join(found.values()) or f"PyTorch {torch.__version__} agrees with the recorded answers")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
