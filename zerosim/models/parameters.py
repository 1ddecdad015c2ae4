"""A parameter: its name, shape and initial values, and whether weight decay applies to it.

Each layer draws its initial values from a separate random stream, so any rank can draw any layer without the others.

A parameter of a split model has the shape of one rank's piece, and says along which dimension, and over which direction
of the mesh, the whole is cut.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from zerosim.autograd.tape_collectives import Direction
from zerosim.core.allocation import Array
from zerosim.core.sharding import parts_of

Initial = Callable[[np.random.Generator, Array], None]
"""Fills a float32 array with initial values."""

Coordinates = Mapping[str, int]
"""A place of the mesh: its number in each direction, by name."""
ORIGIN: Coordinates = {}
"""The only place of a model in one piece."""


@dataclass(frozen=True)
class Cut:
    """The cut of dimension `axis` over the ranks of a direction.

    With `blocks`, the dimension consists of so many equal blocks, such as queries, keys and values, and each is cut.
    """

    direction: Direction
    axis: int
    blocks: int = 1

    def seen(self, whole: Array, coordinates: Coordinates) -> Array:
        """A view of the piece at some coordinates, in which the cut dimension is two: blocks, and a block's piece.

        >>> Cut(Direction("tensor", 2), axis=0, blocks=2).seen(np.arange(8), {"tensor": 1}).tolist()
        [[2, 3], [6, 7]]
        """
        before, after = whole.shape[: self.axis], whole.shape[self.axis + 1 :]
        blocks = whole.reshape(*before, self.blocks, self.direction.size, -1, *after)
        piece: Array = np.moveaxis(blocks, self.axis + 1, 0)[coordinates.get(self.direction.name, 0)]
        return piece


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
    cut: Cut | None = None
    """The cut of the whole parameter, of which `shape` is the shape of one piece; None if every place has all of it."""

    @property
    def count(self) -> int:
        """The number of elements of a piece."""
        return math.prod(self.shape)

    @property
    def whole_shape(self) -> tuple[int, ...]:
        """The shape of the whole parameter.

        >>> Parameter("weight", (3, 2), normal(0.02), cut=Cut(Direction("tensor", 4), axis=0)).whole_shape
        (12, 2)
        """
        if self.cut is None:
            return self.shape
        axis, size = self.cut.axis, self.cut.direction.size
        return (*self.shape[:axis], self.shape[axis] * size, *self.shape[axis + 1 :])

    def answers(self, coordinates: Coordinates) -> bool:
        """Whether a place answers for its piece, where each element of the whole is counted once."""
        cut_over = [] if self.cut is None else parts_of(self.cut.direction.name)
        return not any(number for name, number in coordinates.items() if not {*parts_of(name)} & {*cut_over})

    def index(self, at: int, coordinates: Coordinates) -> tuple[int, ...]:
        """The index in the whole of element `at` of a place's piece, which is flat.

        >>> weight = Parameter("weight", (3, 4), normal(0.02), cut=Cut(Direction("tensor", 4), axis=1, blocks=2))
        >>> weight.index(7, {"tensor": 1})                  # columns 2, 3, 10 and 11 of 16
        (1, 11)
        """
        index = [*map(int, np.unravel_index(at, self.shape))]
        if self.cut is not None:
            axis, direction = self.cut.axis, self.cut.direction
            length = self.shape[axis] // self.cut.blocks
            block, within = divmod(index[axis], length)
            index[axis] = (block * direction.size + coordinates.get(direction.name, 0)) * length + within
        return tuple(index)

    def piece(self, whole: Array, coordinates: Coordinates) -> Array:
        """The piece of a place, from the whole parameter."""
        return whole if self.cut is None else self.cut.seen(whole, coordinates).reshape(self.shape)

    def join(self, whole: Array, piece: Array, coordinates: Coordinates) -> None:
        """Write the piece of a place into the whole parameter."""
        view = whole if self.cut is None else self.cut.seen(whole, coordinates)
        view[...] = piece.reshape(view.shape)

    def begin(self, random: np.random.Generator, out: Array, coordinates: Coordinates) -> None:
        """Fill flat `out` with the initial values of a place: its piece of the whole, which is drawn."""
        if self.cut is None or self.cut.direction.alone:
            self.initial(random, out)
            return
        whole = np.empty(self.whole_shape, np.float32)
        self.initial(random, whole.reshape(-1))
        out[:] = self.piece(whole, coordinates).reshape(-1)


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
