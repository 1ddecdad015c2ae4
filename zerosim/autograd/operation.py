"""An operation: forward and backward as plain functions on arrays, with declared properties.

    x, y       an input and the output
    upstream   ∂L/∂y
    into       the requested gradients, by the name of the input: arrays for backward to write
    out        the array for forward to write
    empty      allocates further arrays, called like `np.empty`

Laws, which allow the reuse of memory:

    forward writes `out` and none of its other arguments; `out` may be the input named by `over`
    backward writes the arrays in `into` and those named by `spoils`; the gradient named by `over_upstream` may be
    `upstream` itself
    from forward to backward it keeps the arrays in `needs` and the one that forward returns, which `empty` has
    allocated, and no reference to any other; with `aliases`, y is a view instead
    arrays to write are in C order; those to read may be transposed or sliced, or be one array twice
    every array of numbers has one dtype, of 32 bits or more; scalars are Python floats, which do not change it

Backward is one function for all inputs, not one for each, because the gradients of attention share most of their
work. Operations that compute nothing in backward (add, reshape, transpose) pass `upstream` on (`passed`); the player
prevents overwriting while two of them read it. Every array is allocated by `empty`, so the ledger counts work arrays
too. It does not count NumPy's temporaries, such as a mask or a product that is added at once.

Operations are fused only where memory or time requires it. Attention is one operation; a norm, an activation and a
product are separate, as in a textbook.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, TypeVar

import numpy.typing as npt

from zerosim.allocation import Array
from zerosim.errors import ZerosimError

Shape = tuple[int, ...]


class Applies(Protocol):
    """The part of a graph's interface that an operation uses."""

    def apply(self, operation: Any, inputs: Any, settings: Mapping[str, Any], /) -> Any:
        """The variable of the operation's output; records the operation as an instruction."""


class InGraph(Protocol):
    """The part of a variable's interface that an operation uses."""

    @property
    def graph(self) -> Applies: ...


AnyVariable = TypeVar("AnyVariable", bound=InGraph)


class Empty(Protocol):
    """Allocates an array with undefined contents."""

    def __call__(self, shape: Shape, dtype: npt.DTypeLike, /) -> Array: ...


@dataclass(frozen=True, eq=False)
class Operation:
    """One step of a computation: `forward` and `backward` on arrays; called with variables, a line of a model's code.

    `forward(*inputs, out, empty, **settings)` writes y into `out` and returns a further array for backward, or None;
    `backward(upstream, into, empty, **named)` gets the arrays named in `needs`, the settings, and as `saved` the array
    that forward returned, if any.

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
    """The inputs that backward reads for each gradient, by the input of that gradient; `y` is the output."""
    over: str | None = None
    """The input that y may overwrite."""
    over_upstream: str | None = None
    """The input whose gradient may overwrite `upstream`."""
    spoils: tuple[str, ...] = ()
    """The inputs that backward reads and then overwrites."""
    passed: Mapping[str, Callable[..., Array]] = field(default_factory=dict)
    """The inputs whose gradient is `upstream` or a view of it, each with the function that makes the view."""
    aliases: str | None = None
    """The input of which y is a view, which forward returns; None if y is memory of its own."""
    copies: bool = False
    """Whether it copies an input, or ∂L/∂y, that is not in C order before it makes a view of it."""
    moves: bool = False
    """Whether forward only copies numbers, so that they need not be widened."""
    sends: bool = False
    """Whether it communicates: forward and backward get arrays in their own precision, which its messages then have,
    and what forward saves is kept in the precision that it has."""
    alike: tuple[str, ...] = ()
    """The inputs that all ranks of its direction have alike, and `y` if they have the output alike: a gradient of these
    is the whole one on every rank, not a part of a sum."""
    indices: bool = False
    """Whether y holds indices, which are int64 in every precision and have no gradient."""
    draws: bool = False
    """Whether it draws random numbers: it then gets `draws`, or None if nothing is to be random."""
    multiplications: Callable[..., int] | None = None
    """The multiplications of forward's matrix products, from the shapes of y and the inputs, and the settings."""
    backward_products: Mapping[str, float] = field(default_factory=dict)
    """The cost of the gradient of each input, in matrix products of forward."""

    def __post_init__(self) -> None:
        read = [name for names in self.needs.values() for name in names if name != "y"]
        for name in (*read, *self.needs, *self.passed, *self.spoils, self.over, self.over_upstream, self.aliases):
            if name is not None and name not in self.inputs:
                raise ZerosimError(f"{self.name} declares {name!r}, which is no input of its forward; those are "
                                   f"{', '.join(self.inputs)}")

    @property
    def name(self) -> str:
        return self.forward.__name__.removesuffix("_forward")

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """The names of forward's input arrays."""
        found = inspect.signature(self.forward).parameters.values()
        return tuple(each.name for each in found if each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD)

    @cached_property
    def saves(self) -> bool:
        """Whether backward reads the array that forward returns."""
        return self.backward is not None and "saved" in inspect.signature(self.backward).parameters

    def __call__(self, *inputs: AnyVariable, **settings: Any) -> AnyVariable:
        found: AnyVariable = inputs[0].graph.apply(self, inputs, settings)
        return found
