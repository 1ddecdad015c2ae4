"""What a model is to those who train it: units of layers, each unit one flat buffer of parameters.

    layer      a linear map and, except in the last layer, an activation
    unit       the layers that are gathered, reduced and updated together; its parameters lie in
               one flat buffer in model order, which may be padded behind `count`
"""

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

from zerosim.allocation import Array
from zerosim.autograd import Operation


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
    frozen: bool = False

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

    >>> from zerosim.models.mlp import mlp
    >>> unit = mlp(2, [], 3, "relu", "cross_entropy").units[0]
    >>> [(p.name, p.shape, p.start, p.count) for p in unit.parameters]
    [('layers.0.weight', (3, 2), 0, 6), ('layers.0.bias', (3,), 6, 3)]
    """

    layers: tuple[Layer, ...]

    @property
    def frozen(self) -> bool:
        """Whether its weights stay as they are: it then has no gradient and no optimizer state."""
        return self.layers[0].frozen

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

    @property
    def layer_bounds(self) -> list[tuple[int, int]]:
        """The first element of each layer and the one after its last."""
        return list(pairwise(accumulate((layer.count for layer in self.layers), initial=0)))

    @cached_property
    def name(self) -> str:
        """`layers.0`, or `layers.0-1` for several layers."""
        first, last = self.layers[0], self.layers[-1]
        return first.name if first is last else f"{first.name}-{last.index}"

    def views(self, flat: Array) -> dict[str, Array]:
        """Each parameter as a shaped view into `flat`, which may be padded.

        >>> from zerosim.models.mlp import mlp
        >>> unit = mlp(2, [], 1, "relu", "cross_entropy").units[0]
        >>> import numpy as np
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
    def lowest_trained(self) -> int:
        """The first layer that is not frozen: nothing below it needs a gradient."""
        return next((unit.layers[0].index for unit in self.units if not unit.frozen), len(self.layers))

    @property
    def backward_units(self) -> tuple[Unit, ...]:
        """Those that backward goes through: last first, down to the lowest that is trained."""
        return tuple(unit for unit in reversed(self.units) if unit.layers[-1].index >= self.lowest_trained)

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Of all units, in model order."""
        return tuple(layer for unit in self.units for layer in unit.layers)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Of all units, in model order."""
        return tuple(parameter for unit in self.units for parameter in unit.parameters)
