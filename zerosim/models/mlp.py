"""A multi-layer perceptron: linear maps with an activation between them.

Initial weights are PyTorch's default for Linear: uniform in ±1/√inputs, weight and bias.
"""

import math
from collections.abc import Collection, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from zerosim.autograd.graph import Variable, Weights
from zerosim.autograd.operation import Operation
from zerosim.autograd.operations.elementwise import ACTIVATIONS
from zerosim.autograd.operations.linear import linear
from zerosim.autograd.operations.losses import LOSSES
from zerosim.errors import ZerosimError
from zerosim.models.parameters import Parameter, uniform
from zerosim.models.units import Layer, Model, ModelKind, Task, grouped


def hidden(w: Weights, x: Variable, *, activation: Operation) -> Variable:
    """y = f(x Wᵀ + b)."""
    return activation(linear(x, w["weight"], w["bias"]))


def last(w: Weights, x: Variable) -> Variable:
    """y = x Wᵀ + b."""
    return linear(x, w["weight"], w["bias"])


def mlp(
    inputs: int,
    hidden_widths: Sequence[int],
    outputs: int,
    activation: str,
    loss: str,
    *,
    groups: Sequence[Sequence[int]] | None = None,
    frozen: Collection[int] = (),
) -> Model:
    """A multi-layer perceptron of `len(hidden_widths) + 1` layers, each a unit unless `groups` is given.

    `activation` is a key of `ACTIVATIONS`, `loss` one of `LOSSES`. `groups` lists the layers of each unit; the layers
    in `frozen` keep their weights. Initial weights and biases are those of PyTorch's Linear: uniform from −1/√inputs
    to 1/√inputs. Raises `ZerosimError` for a partly frozen unit.

    >>> model = mlp(784, [1024, 1024, 1024], 10, "gelu", "cross_entropy")
    >>> [unit.name for unit in model.units], model.count
    (['layers.0', 'layers.1', 'layers.2', 'layers.3'], 2913290)
    >>> [unit.name for unit in mlp(4, [4, 4], 2, "relu", "cross_entropy", groups=[[0, 1], [2]]).units]
    ['layers.0-1', 'layers.2']
    """
    check_known("activation", activation, ACTIVATIONS)
    check_known("loss", loss, LOSSES)
    widths = [inputs, *hidden_widths, outputs]
    if min(widths) < 1:
        raise ZerosimError(f"layer widths are {widths}; give every layer a width of at least 1")
    functions = [partial(hidden, activation=ACTIVATIONS[activation])] * len(hidden_widths) + [last]
    layers = [
        Layer(f"layers.{number}", f"layers.{number}.", parameters(i, o), function)
        for number, ((i, o), function) in enumerate(zip(pairwise(widths), functions, strict=True))
    ]
    return Model(grouped(layers, groups, frozen), Task(inputs, outputs, loss), f"{'-'.join(map(str, widths))} MLP")


def for_task(settings: Any, task: Task, groups: Sequence[Sequence[int]], frozen: Collection[int]) -> Model:
    """A multi-layer perceptron with a scenario's `settings`; the task gives the first and the last width."""
    return mlp(
        task.inputs, settings.hidden, task.outputs, settings.activation, task.loss, groups=groups, frozen=frozen
    )


def parameters(inputs: int, outputs: int) -> tuple[Parameter, Parameter]:
    """The weight and the bias of one layer."""
    bound = uniform(1.0 / math.sqrt(inputs))
    return Parameter("weight", (outputs, inputs), bound), Parameter("bias", (outputs,), bound, decays=False)


def check_known(what: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        raise ZerosimError(f"{what} {name!r} is not known; use one of {', '.join(known)}")


KIND = ModelKind(
    "mlp", own_keys=("hidden", "activation"), for_task=for_task, layer_count=lambda settings: len(settings.hidden) + 1)
