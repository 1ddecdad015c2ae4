"""PyTorch's answers to `functions`, and what it makes of weights that zerosim has written."""

import json
from itertools import pairwise

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from tests.oracles import functions
from tests.oracles.torch_modules import FAMILIES, attend, rotated


def dropped(x, probability):
    mask = torch.from_numpy(functions.dropout_numbers(x.shape)) >= probability
    return x * mask / (1 - probability)


def gathered(x, indices):
    """Rows; of zeros where the index is −1."""
    return torch.cat([x, torch.zeros_like(x[:1])])[indices]


def scattered(x, indices, count):
    flat = indices.flatten()
    room = torch.zeros(count + 1, x.shape[1], dtype=x.dtype)
    return room.index_add(0, flat.where(flat >= 0, count), x.repeat_interleave(indices.shape[1], dim=0))[:count]


def beside(x, other, heads, other_heads):
    x, other = x.unflatten(-1, (heads, -1)), other.unflatten(-1, (other_heads, -1))
    return torch.cat([x, other.repeat_interleave(heads // other_heads, dim=2)], dim=-1).flatten(2)


def queued(choices, queues, capacity):
    """By GShard's cumulated one-hot masks."""
    flat = choices.T.flatten()
    mask = functional.one_hot(flat, queues)
    place = (mask.cumsum(0) * mask).sum(1) - 1
    return torch.where(place < capacity, flat * capacity + place, -1).reshape(choices.T.shape).T


OPERATIONS = {
    "add": torch.add, "multiply": torch.mul, "relu": torch.relu, "tanh": torch.tanh, "silu": functional.silu,
    "sigmoid": torch.sigmoid, "scale": lambda x, factor: factor * x,
    "gelu": lambda x: functional.gelu(x, approximate="tanh"),
    "softmax": lambda x: torch.softmax(x, dim=-1),
    "dropout": dropped,
    "reshape": lambda x, shape: x.reshape(shape), "transpose": lambda x, axes: x.permute(axes),
    "causal_attention": attend,
    "causal_self_attention": lambda qkv, heads: attend(*qkv.chunk(3, dim=-1), heads, heads),
    "rotary": rotated, "beside": beside,
    "embedding": functional.embedding,
    "positions": lambda x, weight: x + functional.embedding(torch.arange(x.shape[1]), weight),
    "linear": functional.linear,
    "affine": lambda x, weight, bias: x @ weight + bias,
    "add_bias": lambda x, bias: x + bias,
    "layer_norm": lambda x, weight, bias: functional.layer_norm(x, weight.shape, weight, bias),
    "rms_norm": lambda x, weight: functional.rms_norm(x, weight.shape, weight, eps=1e-5),
    "matmul": torch.matmul,
    "top_indices": lambda x, count: torch.topk(x, count).indices,
    "take_along": lambda x, indices: torch.gather(x, -1, indices),
    "one_hot": lambda indices, count: functional.one_hot(indices, num_classes=count),
    "gather_rows": gathered, "scatter_rows": scattered, "queue_slots": queued,
}


def numbers(tensor):
    return tensor.detach().double().numpy()


def of_call(call, dtype):
    """The output, and the gradient of each input that has one."""
    inputs = {name: torch.from_numpy(array) for name, array in call.inputs().items()}
    inputs = {n: x.to(dtype).requires_grad_() if x.is_floating_point() else x for n, x in inputs.items()}
    y = OPERATIONS[call.operation](*inputs.values(), **call.settings)
    if y.requires_grad:
        y.backward(torch.from_numpy(call.weighing(tuple(y.shape))).to(dtype))
    floating = {name: x for name, x in inputs.items() if x.is_floating_point()}
    return {"y": numbers(y)} | {
        name: numbers(torch.zeros_like(x) if x.grad is None else x.grad) for name, x in floating.items()}


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
        {each.name: of_call(each, dtype) for each in functions.CALLS}
        | {each.name: of_loss(each, dtype) for each in functions.JUDGED}
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
