"""What an operation is to a tape, and how a model's text uses one.

    x, y       an input and the output
    upstream   ∂L/∂y
    into       the gradients that are wanted, by the name of the input: arrays for backward to write
    out        the array for forward to write
    empty      where further arrays come from, called like `np.empty`

Laws, which let memory be used again:

    forward writes `out` and nothing else that it is given; `out` may be the input named by `over`
    backward writes what is in `into` and what `spoils` names; a gradient may lie over `upstream` if `over_upstream`
    names it
    every array of numbers has one dtype, of 32 bits or more; scalars are Python floats, which leave it alone
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy.typing as npt

from zerosim.allocation import Array

if TYPE_CHECKING:
    from zerosim.autograd.graph import Variable

Shape = tuple[int, ...]


class Empty(Protocol):
    """Hands out an array whose contents are not defined."""

    def __call__(self, shape: Shape, dtype: npt.DTypeLike, /) -> Array: ...


@dataclass(frozen=True, eq=False)
class Operation:
    """One step of a computation: `forward` and `backward` on arrays; called with variables, a line of a model's text.

    `forward(*inputs, out, empty, **settings)` writes y into `out` and returns what else backward needs, if anything;
    `backward(upstream, into, empty, **named)` gets what `needs` names, the settings, and `saved` if forward has
    returned something.

    >>> from zerosim.autograd.graph import Graph
    >>> from zerosim.autograd.operations.linear import linear
    >>> graph = Graph((8, 3))
    >>> linear(graph.input, graph.parameter("weight", (2, 3))).shape
    (8, 2)
    """

    forward: Callable[..., Array | None]
    backward: Callable[..., None] | None
    shape: Callable[..., Shape]
    """Of y, from the shapes of the inputs and the settings; raises `ZerosimError` where they do not go together."""
    needs: Mapping[str, tuple[str, ...]]
    """For the gradient of each input that has one: the inputs that backward reads, `y` being the output."""
    over: str | None = None
    """The input over which y may be written."""
    over_upstream: str | None = None
    """The input whose gradient may be written over `upstream`."""
    spoils: tuple[str, ...] = ()
    """What backward reads and writes over."""
    passed: Mapping[str, Callable[..., Array]] = field(default_factory=dict)
    """Inputs whose gradient is `upstream` itself, or a view of it: of these, how it is seen."""
    views: bool = False
    """Whether y is a view of the input, which forward then returns."""
    moves: bool = False
    """Whether forward only moves numbers, so that they need not be widened."""
    draws: bool = False
    """Whether it draws random numbers: then it gets `draws`, or None where nothing is to be random."""
    multiplications: Callable[..., int] | None = None
    """Of matrix products in forward, from the shape of y, those of the inputs, and the settings."""
    backward_products: Mapping[str, float] = field(default_factory=dict)
    """For the gradient of each input: how many times the matrix products of forward."""

    @property
    def name(self) -> str:
        return self.forward.__name__.removesuffix("_forward")

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """The names of the arrays that forward takes."""
        found = inspect.signature(self.forward).parameters.values()
        return tuple(each.name for each in found if each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD)

    @cached_property
    def saves(self) -> bool:
        """Whether backward reads what forward returns."""
        return self.backward is not None and "saved" in inspect.signature(self.backward).parameters

    def __call__(self, *inputs: "Variable", **settings: Any) -> "Variable":
        return inputs[0].graph.apply(self, inputs, settings)
