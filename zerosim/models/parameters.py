"""A parameter: its name, its shape, its initial numbers, and whether weight decay applies to it.

Initial numbers are drawn from a stream of each layer's own, so that any rank can draw any layer without the others.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from zerosim.allocation import Array

Initial = Callable[[np.random.Generator, Array], None]
"""Fills an array of float32 with the numbers that training begins with."""


@dataclass(frozen=True, eq=False)
class Parameter:
    """One tensor of a layer, as the layer's function names it.

    >>> Parameter("weight", (3, 2), normal(0.02)).count
    6
    """

    name: str
    shape: tuple[int, ...]
    initial: Initial
    decays: bool = True
    """Whether weight decay applies to it where `decay_biases` is off: to matrices, not to biases and norms."""

    @property
    def count(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


def uniform(bound: float) -> Initial:
    """Initial numbers that are uniform from −bound to bound."""

    def fill(random: np.random.Generator, out: Array) -> None:
        random.random(out=out, dtype=np.float32)
        out *= 2.0 * bound
        out -= bound

    return fill


def normal(deviation: float) -> Initial:
    """Initial numbers that are normally distributed around 0."""

    def fill(random: np.random.Generator, out: Array) -> None:
        random.standard_normal(out=out, dtype=np.float32)
        out *= deviation

    return fill


def constant(value: float) -> Initial:
    """Initial numbers that are all the same."""

    def fill(random: np.random.Generator, out: Array) -> None:
        out[...] = value

    return fill
