"""What a parameter is: a name, a shape, the numbers it begins with, and whether weight decay is for it."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from zerosim.allocation import Array

Initial = Callable[[np.random.Generator, Array], None]
"""Fills an array of float32 with the numbers that training begins with."""


@dataclass(frozen=True, eq=False)
class Parameter:
    """One tensor of a layer, as the layer's text names it.

    >>> Parameter("weight", (3, 2), normal(0.02)).count
    6
    """

    name: str
    shape: tuple[int, ...]
    initial: Initial
    decays: bool = True
    """Whether it is decayed where `decay_biases` is off: a matrix is; biases and the weights of norms are not."""

    @property
    def count(self) -> int:
        """Elements."""
        return math.prod(self.shape)


def uniform(bound: float) -> Initial:
    """Uniform from −bound to bound."""

    def fill(random: np.random.Generator, out: Array) -> None:
        random.random(out=out, dtype=np.float32)
        out *= 2.0 * bound
        out -= bound

    return fill


def normal(deviation: float) -> Initial:
    """Normal, around 0."""

    def fill(random: np.random.Generator, out: Array) -> None:
        random.standard_normal(out=out, dtype=np.float32)
        out *= deviation

    return fill


def constant(value: float) -> Initial:
    """One number everywhere."""

    def fill(random: np.random.Generator, out: Array) -> None:
        out[...] = value

    return fill
