"""PyTorch's answers to `functions`, and what it makes of weights that zerosim has written."""

import json
from itertools import pairwise

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from tests.oracles import functions
from tests.oracles.torch_modules import FAMILIES


def numbers(tensor):
    return tensor.detach().double().numpy()


def of_loss(case, dtype):
    outputs = torch.from_numpy(case.outputs()).to(dtype).requires_grad_()
    loss = loss_of(case.loss, outputs, torch.from_numpy(case.targets()))
    loss.backward()
    return {"loss": numbers(loss), "outputs": numbers(outputs.grad)}


def loss_of(name, outputs, targets):
    """In float32 at least."""
    wide = outputs if outputs.dtype.itemsize >= 4 else outputs.float()
    if name == "mean_squared_error":
        return functional.mse_loss(wide, targets.to(wide.dtype))
    return functional.cross_entropy(wide.flatten(0, -2), targets.flatten(), ignore_index=functions.UNCOUNTED)


ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": lambda: nn.GELU(approximate="tanh")}


def perceptron(case):
    layers = [nn.Linear(inputs, outputs) for inputs, outputs in pairwise(case.widths)]
    parts = [part for layer in layers for part in (layer, ACTIVATIONS[case.activation]())]
    network = nn.ModuleDict({"layers": nn.ModuleList(layers)})
    network.forward = nn.Sequential(*parts[:-1]).forward
    return network


def module(case, weights):
    """A model with the weights that `weights(name, shape)` gives."""
    built = perceptron(case) if isinstance(case, functions.Perceptron) else FAMILIES[case.family](case)
    names = built.state_dict()
    built.load_state_dict({name: torch.from_numpy(weights(name, tuple(each.shape))) for name, each in names.items()})
    return built


def of_model(case, dtype):
    """The logits, the loss, and the gradient of each parameter."""
    built = module(case, case.parameter).to(dtype)
    x, targets = map(torch.from_numpy, case.batch())
    logits = built(x.to(dtype) if x.is_floating_point() else x)
    loss = loss_of(case.loss, logits, targets)
    loss.backward()
    gradients = {name: numbers(each.grad) for name, each in built.named_parameters()}
    return {"logits": numbers(logits), "loss": numbers(loss)} | gradients


def ask(dtype):
    """All answers, in numbers."""
    return functions.in_numbers(
        {each.name: of_loss(each, dtype) for each in functions.JUDGED}
        | {each.name: of_model(each, dtype) for each in functions.MODELS}
    )


def safetensors(path):
    """{name: array} of a file of float32, read by the format's own description."""
    blob = path.read_bytes()
    length = int.from_bytes(blob[:8], "little")
    header = json.loads(blob[8 : 8 + length])
    header.pop("__metadata__", None)
    assert {each["dtype"] for each in header.values()} == {"F32"}
    return {
        name: np.frombuffer(blob[8 + length :][slice(*each["data_offsets"])], np.float32).reshape(each["shape"]).copy()
        for name, each in header.items()
    }


def opened(folder):
    """What is wrong with weights that zerosim has trained: each must load by name, and give zerosim's logits."""
    wrong = []
    for case in functions.TRAINED:
        found = safetensors(folder / f"{case.name}.safetensors")
        built = FAMILIES[case.family](case)
        built.load_state_dict({name: torch.from_numpy(array) for name, array in found.items()})
        with torch.no_grad():
            logits = built(torch.from_numpy(case.batch()[0])).numpy()
        ours = np.load(folder / f"{case.name}.npy")
        far = np.abs(logits - ours).max() / np.abs(logits).max()
        if not far < 1e-5:
            wrong.append(f"{case.name}: logits of the weights that zerosim wrote differ by {far:.2g} of the largest")
    return wrong


def answers():
    """The answers in float64, and in each other precision."""
    return ask(torch.float64), {precision: ask(getattr(torch, precision)) for precision in functions.PRECISIONS}


def disagreements(exact, others):
    """A line for each live answer that is not the recorded one."""
    recorded = functions.read(functions.RECORDED)
    return [
        f"{name}: PyTorch in {precision} is {ratio:.3g} times as far from what is recorded as is permitted"
        for precision, found in {"float64": exact, **others}.items()
        for name, ratio in functions.disagreements(precision, found, recorded).items()
    ]
