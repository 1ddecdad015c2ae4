"""Models as zerosim trains them: units of layers, each unit one flat buffer of parameters.

    layer      a linear map and, except in the last layer, an activation
    unit       the layers that are gathered, reduced and updated together; its parameters lie in
               one flat buffer in model order, which may be padded behind `count`
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

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
    def lowest_trained(self) -> int:
        """The first layer that is not frozen: nothing below it needs a gradient."""
        return next((unit.layers[0].index for unit in self.units if not unit.frozen), len(self.layers))

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Of all units, in model order."""
        return tuple(layer for unit in self.units for layer in unit.layers)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Of all units, in model order."""
        return tuple(parameter for unit in self.units for parameter in unit.parameters)


def mlp(
    inputs: int,
    hidden: Sequence[int],
    outputs: int,
    activation: str,
    loss: str,
    *,
    groups: Sequence[Sequence[int]] | None = None,
    frozen: Collection[int] = (),
) -> Model:
    """A multi-layer perceptron of `len(hidden) + 1` layers, each a unit of its own unless `groups` says otherwise.

    `activation` is a key of `ACTIVATIONS`, `loss` one of `LOSSES`. `groups` lists the layers of each unit, all of them
    in order; the layers in `frozen` keep their weights. Raises `ZerosimError` when a unit would be frozen in part.

    >>> model = mlp(784, [1024, 1024, 1024], 10, "gelu", "cross_entropy")
    >>> [unit.name for unit in model.units], model.count
    (['layers.0', 'layers.1', 'layers.2', 'layers.3'], 2913290)
    >>> [unit.name for unit in mlp(4, [4, 4], 2, "relu", "cross_entropy", groups=[[0, 1], [2]]).units]
    ['layers.0-1', 'layers.2']
    """
    _check_known("activation", activation, ACTIVATIONS)
    _check_known("loss", loss, LOSSES)
    widths = [inputs, *hidden, outputs]
    if min(widths) < 1:
        raise ZerosimError(f"layer widths are {widths}; give every layer a width of at least 1")
    layers = [
        Layer(
            index, i, o,
            (LINEAR, ACTIVATIONS[activation]) if index < len(hidden) else (LINEAR,),
            frozen=index in frozen,
        )
        for index, (i, o) in enumerate(pairwise(widths))
    ]
    units = [[layer.index] for layer in layers] if groups is None else groups
    _check_groups(units, layers)
    return Model(tuple(Unit(tuple(layers[index] for index in unit)) for unit in units), loss)


def _check_groups(units: Sequence[Sequence[int]], layers: Sequence[Layer]) -> None:
    flat = [index for unit in units for index in unit]
    if flat != list(range(len(layers))) or not all(units):
        raise ZerosimError(f"units {list(units)} must name the layers 0 to {len(layers) - 1}, each once and in order")
    for unit in units:
        if len({layers[index].frozen for index in unit}) > 1:
            raise ZerosimError(f"the unit of layers {list(unit)} is frozen in part; freeze all of it or none")


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
