"""An operation: forward and backward as plain functions on arrays, and a declaration of what holds for them.

    x, y       an input and the output
    upstream   ∂L/∂y
    into       the gradients that are wanted, by the name of the input: arrays for backward to write
    out        the array for forward to write
    empty      where further arrays come from, called like `np.empty`

Laws, which allow memory to be used again:

    forward writes `out` and nothing else that it is given; `out` may be the input named by `over`
    backward writes what is in `into` and what `spoils` names; a gradient may lie over `upstream` if `over_upstream`
    names it
    every array of numbers has one dtype, of 32 bits or more; scalars are Python floats, which do not change it

Backward is one function for all inputs, not one for each, because the gradients of attention share most of their
work. Operations that compute nothing in backward (add, reshape, transpose) pass `upstream` on (`passed`); the player
prevents that anyone writes over what two of them read. Every array comes from `empty`, so the ledger sees work arrays
too. What NumPy allocates in passing, such as a mask or a product that is added at once, is not seen.

Operations are fused only where memory or time requires it. Attention is one operation; a norm, an activation and a
product are each their own, as in a textbook.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, TypeVar

import numpy.typing as npt

from zerosim.allocation import Array

Shape = tuple[int, ...]


class Applies(Protocol):
    """A graph, as far as an operation knows it."""

    def apply(self, operation: Any, inputs: Any, settings: Mapping[str, Any], /) -> Any:
        """The variable that the operation makes of the inputs, noted as an instruction."""


class InGraph(Protocol):
    """A variable, as far as an operation knows it."""

    @property
    def graph(self) -> Applies: ...


AnyVariable = TypeVar("AnyVariable", bound=InGraph)


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
    """The shape of y, from the shapes of the inputs and the settings; raises `ZerosimError` if they do not fit."""
    needs: Mapping[str, tuple[str, ...]]
    """The inputs that backward reads for the gradient of each input that has one; `y` is the output."""
    over: str | None = None
    """The input over which y may be written."""
    over_upstream: str | None = None
    """The input whose gradient may be written over `upstream`."""
    spoils: tuple[str, ...] = ()
    """The inputs that backward reads and then overwrites."""
    passed: Mapping[str, Callable[..., Array]] = field(default_factory=dict)
    """The inputs whose gradient is `upstream` or a view of it, each with the function that makes the view."""
    views: bool = False
    """Whether y is a view of the input, which forward then returns."""
    moves: bool = False
    """Whether forward only moves numbers, so that they need not be widened."""
    indices: bool = False
    """Whether y holds indices, which are int64 in every precision and have no gradient."""
    draws: bool = False
    """Whether it draws random numbers: then it gets `draws`, or None where nothing is to be random."""
    multiplications: Callable[..., int] | None = None
    """The multiplications of forward's matrix products, from the shapes of y and the inputs, and the settings."""
    backward_products: Mapping[str, float] = field(default_factory=dict)
    """The cost of the gradient of each input, in matrix products of forward."""

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

    def __call__(self, *inputs: AnyVariable, **settings: Any) -> AnyVariable:
        found: AnyVariable = inputs[0].graph.apply(self, inputs, settings)
        return found
