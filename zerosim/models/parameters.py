"""A parameter: its name, shape and initial values, and whether weight decay applies to it.

Each layer draws its initial values from a separate random stream, so any rank can draw any layer without the others.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from zerosim.allocation import Array

Initial = Callable[[np.random.Generator, Array], None]
"""Fills a float32 array with initial values."""


@dataclass(frozen=True, eq=False)
class Parameter:
    """One tensor of a layer, with its name in the layer's function.

    >>> Parameter("weight", (3, 2), normal(0.02)).count
    6
    """

    name: str
    shape: tuple[int, ...]
    initial: Initial
    decays: bool = True
    """Whether weight decay applies when `decay_biases` is off: to matrices, not to biases and norms."""

    @property
    def count(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


def uniform(bound: float) -> Initial:
    """Initial values, uniform from −bound to bound."""

    def fill(random: np.random.Generator, out: Array) -> None:
        random.random(out=out, dtype=np.float32)
        out *= 2.0 * bound
        out -= bound

    return fill


def normal(deviation: float) -> Initial:
    """Initial values, normally distributed around 0."""

    def fill(random: np.random.Generator, out: Array) -> None:
        random.standard_normal(out=out, dtype=np.float32)
        out *= deviation

    return fill


def constant(value: float) -> Initial:
    """Equal initial values."""

    def fill(random: np.random.Generator, out: Array) -> None:
        out[...] = value

    return fill
