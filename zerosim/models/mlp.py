"""A multi-layer perceptron, and its weights before the first step."""

import math
from collections.abc import Collection, Sequence
from itertools import pairwise

import numpy as np

from zerosim.allocation import Array
from zerosim.autograd import ACTIVATIONS, LINEAR, LOSSES
from zerosim.errors import ZerosimError
from zerosim.models.units import Layer, Model, Unit


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
