"""Models as zerosim trains them: units of layers, each unit one flat buffer of parameters.

    layer      a linear map and, except in the last layer, an activation
    unit       the layers that are gathered, reduced and updated together; its parameters lie in
               one flat buffer in model order, which may be padded behind `count`
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from zerosim.allocation import Array
from zerosim.autograd import ACTIVATIONS, LINEAR, LOSSES, Operation
from zerosim.errors import ZerosimError


@dataclass(frozen=True, eq=False)
class Parameter:
    """A named tensor: `count` elements from `start` on in its unit's flat buffer."""

    name: str
    shape: tuple[int, ...]
    start: int

    @property
    def count(self) -> int:
        """Elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, eq=False)
class Layer:
    """`operations`, in order, make (samples, outputs) of (samples, inputs)."""

    index: int
    inputs: int
    outputs: int
    operations: tuple[Operation, ...]

    @property
    def name(self) -> str:
        """As in PyTorch's names of parameters: `layers.0`."""
        return f"layers.{self.index}"

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each parameter, in model order, as PyTorch's Linear has them."""
        return {
            f"{self.name}.weight": (self.outputs, self.inputs),
            f"{self.name}.bias": (self.outputs,),
        }

    @property
    def count(self) -> int:
        """Elements in all parameters."""
        return sum(math.prod(shape) for shape in self.shapes.values())


@dataclass(frozen=True, eq=False)
class Unit:
    """One or several neighbouring layers whose parameters share a flat buffer.

    >>> unit = mlp(2, [], 3, "relu", "cross_entropy").units[0]
    >>> [(p.name, p.shape, p.start, p.count) for p in unit.parameters]
    [('layers.0.weight', (3, 2), 0, 6), ('layers.0.bias', (3,), 6, 3)]
    """

    layers: tuple[Layer, ...]

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """In model order, without gaps."""
        parameters: list[Parameter] = []
        start = 0
        for layer in self.layers:
            for name, shape in layer.shapes.items():
                parameters.append(Parameter(name, shape, start))
                start += parameters[-1].count
        return tuple(parameters)

    @cached_property
    def count(self) -> int:
        """Elements, without padding."""
        return sum(layer.count for layer in self.layers)

    @cached_property
    def name(self) -> str:
        """`layers.0`, or `layers.0-1` for several layers."""
        first, last = self.layers[0], self.layers[-1]
        return first.name if first is last else f"{first.name}-{last.index}"

    def views(self, flat: Array) -> dict[str, Array]:
        """Each parameter as a shaped view into `flat`, which may be padded.

        >>> unit = mlp(2, [], 1, "relu", "cross_entropy").units[0]
        >>> unit.views(np.arange(4.0))
        {'layers.0.weight': array([[0., 1.]]), 'layers.0.bias': array([2.])}
        """
        return {
            p.name: flat[p.start : p.start + p.count].reshape(p.shape) for p in self.parameters
        }


@dataclass(frozen=True, eq=False)
class Model:
    """Units in order, and the name of the loss that judges the last one's outputs."""

    units: tuple[Unit, ...]
    loss: str

    @property
    def inputs(self) -> int:
        """Features of each sample."""
        return self.units[0].layers[0].inputs

    @property
    def outputs(self) -> int:
        """Outputs for each sample."""
        return self.units[-1].layers[-1].outputs

    @property
    def count(self) -> int:
        """Elements in all parameters, without padding."""
        return sum(unit.count for unit in self.units)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Of all units, in model order."""
        return tuple(parameter for unit in self.units for parameter in unit.parameters)


def mlp(
    inputs: int, hidden: Sequence[int], outputs: int, activation: str, loss: str
) -> Model:
    """A multi-layer perceptron: `len(hidden) + 1` layers, each a unit of its own.

    `activation` is a key of `ACTIVATIONS`, `loss` one of `LOSSES`.

    >>> model = mlp(784, [1024, 1024, 1024], 10, "gelu", "cross_entropy")
    >>> [unit.name for unit in model.units], model.count
    (['layers.0', 'layers.1', 'layers.2', 'layers.3'], 2913290)
    """
    _check_known("activation", activation, ACTIVATIONS)
    _check_known("loss", loss, LOSSES)
    widths = [inputs, *hidden, outputs]
    if min(widths) < 1:
        raise ZerosimError(f"layer widths are {widths}; give every layer a width of at least 1")
    layers = [
        Layer(index, i, o, (LINEAR, ACTIVATIONS[activation]) if index < len(hidden) else (LINEAR,))
        for index, (i, o) in enumerate(pairwise(widths))
    ]
    return Model(tuple(Unit((layer,)) for layer in layers), loss)


def _check_known(what: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        raise ZerosimError(f"{what} {name!r} is not known; use one of {', '.join(known)}")


def initial(unit: Unit, seed: int) -> Array:
    """The unit's first weights: float32, flat, `unit.count` elements.

    PyTorch's default for Linear, for weight and bias alike: uniform from −1/√inputs to 1/√inputs.
    Each layer has a random stream of its own, so any rank can draw any layer, in any grouping.

    >>> first = initial(mlp(4, [], 8, "relu", "cross_entropy").units[0], seed=0)
    >>> first.dtype, len(first), bool(abs(first).max() <= 0.5)
    (dtype('float32'), 40, True)
    """
    flat = np.empty(unit.count, np.float32)
    start = 0
    for layer in unit.layers:
        drawn = flat[start : start + layer.count]
        bound = 1.0 / math.sqrt(layer.inputs)
        np.random.default_rng([seed, layer.index]).random(out=drawn, dtype=np.float32)
        drawn *= 2.0 * bound
        drawn -= bound
        start += layer.count
    return flat
