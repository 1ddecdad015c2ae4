"""An operation: forward and backward as plain functions on arrays.

    x, y       an input and the output
    upstream   ∂L/∂y
    into       the wanted gradients, by the name of the input
    empty      allocates arrays, called like `np.empty`

Laws:

    forward returns y, an array of `empty` or a view of an input; or y and an array of `empty`, for backward's `saved`
    backward writes each wanted gradient to `into["x"]`, or sets it to `upstream`, a view of it, or an array of `empty`
    neither changes another array that it gets; these may be transposed or sliced, or be one array twice
    from forward to backward stay the arrays in `needs` and `saved`, and no other; `saved` holds no weights, which are
    passed again
    every array of numbers has one dtype, of 32 bits or more; scalars are Python floats, which do not change it

As nothing is overwritten, a view is as good as a copy: y may be a view of x, and a sum passes one `upstream` on to both
inputs. An array is freed with its last reference. Shapes are not declared either: forward runs on extents
(`core/extents.py`) when a model's code is recorded.

Backward is one function for all inputs, not one for each, because the gradients of attention share most of their
work. Every array is allocated by `empty` or `into`, so the ledger counts work arrays too. It does not count NumPy's
temporaries, such as a mask or a product that is added at once.

Operations are fused only where memory or time requires it. Attention is one operation; a norm, an activation and a
product are separate, as in a textbook.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt

from zerosim.core.allocation import Array
from zerosim.core.errors import CollectiveError, ZerosimError
from zerosim.core.extents import Extent

Shape = tuple[int, ...]


class Empty(Protocol):
    """Allocates an array with undefined contents."""

    def __call__(self, shape: Shape, dtype: npt.DTypeLike, /) -> Array: ...


def refuse(operation: str, wants: str, *shapes: Shape | None) -> ZerosimError:
    """The error for shapes that an operation does not accept."""
    given = ", ".join(str(shape) for shape in shapes if shape is not None)
    return ZerosimError(f"{operation} needs {wants}, found {given}")


def copy_of(x: Array, empty: Empty, dtype: npt.DTypeLike | None = None) -> Array:
    """A copy of x in C order, rounded to nearest if its `dtype` is narrower."""
    copy = empty(x.shape, dtype or x.dtype)
    copy[...] = x
    return copy


Value = TypeVar("Value", bound="Operand")


class OperandGraph(Protocol[Value]):
    """A graph: it records an operation on its values, and returns the value of the output."""

    def apply(self, operation: "Operation", inputs: Sequence[Value], settings: Mapping[str, Any], /) -> Value: ...


class Operand(Protocol):
    """A value of a graph, on which a model's code calls operations."""

    @property
    def graph(self) -> OperandGraph[Self]: ...


class Into:
    """The wanted gradients of one backward, by input: `memory(name)` is memory for one, taken when it is first read.

    >>> into = Into({"x": (2,)}, lambda name: np.zeros(2))
    >>> "x" in into, "weight" in into, into["x"]
    (True, False, array([0., 0.]))
    >>> into["x"] = np.ones(2)
    >>> into["x"]
    array([1., 1.])
    """

    def __init__(self, shapes: Mapping[str, Shape], memory: Callable[[str], Array]) -> None:
        self.shapes = shapes
        self.passed = set[str]()
        """The gradients that were set, and not written."""
        self._memory = memory
        self._arrays: dict[str, Array] = {}

    def __contains__(self, name: str) -> bool:
        return name in self.shapes

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __getitem__(self, name: str) -> Array:
        if name not in self._arrays:
            self._arrays[name] = self._memory(name)
        return self._arrays[name]

    def __setitem__(self, name: str, gradient: Array) -> None:
        if name in self.shapes:
            self._arrays[name] = gradient
            self.passed.add(name)

    def get(self, name: str) -> Array | None:
        """Memory for a gradient; None if it is not wanted."""
        return self[name] if name in self.shapes else None


@dataclass(frozen=True, eq=False)
class Operation:
    """One step of a computation: `forward` and `backward` on arrays; called with variables, a line of a model's code.

    `forward(*inputs, empty, **settings)` returns y, and for a backward with the parameter `saved` also that array.
    `backward(upstream, into, empty, **named)` has as parameters the inputs that it reads, `y` for the output, `saved`,
    and the settings. With a parameter `draws` both draw random numbers; it is None if nothing is to be random. These
    two functions are all that an operation must have; the other fields keep less memory, or let a plan count more.

    >>> def cube_forward(x, *, empty):
    ...     return np.power(x, 3, out=empty(x.shape, x.dtype))
    >>> def cube_backward(upstream, into, *, empty, x):
    ...     np.multiply(upstream, 3 * x * x, out=into["x"])
    >>> cube = Operation(cube_forward, cube_backward)
    >>> cube.name, cube.inputs, cube.needs
    ('cube', ('x',), {'x': ('x',)})
    """

    forward: Callable[..., Any]
    backward: Callable[..., None] | None = None
    needs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The arrays that backward reads for each gradient, by the input of that gradient; inputs that are integers have
    none. By default every input has a gradient, for which backward reads all arrays among its parameters."""
    passes: tuple[str, ...] = ()
    """The inputs whose gradient is always `upstream` or a view of it, which costs nothing."""
    moves: bool = False
    """Whether forward only copies numbers, so that they need not be widened."""
    sends: bool = False
    """Whether it communicates: forward and backward get arrays in their own precision, which its messages then have,
    and what forward saves is kept in the precision that it has."""
    alike: tuple[str, ...] = ()
    """The inputs that all ranks of its direction have alike, and `y` if they have the output alike: a gradient of these
    is the whole one on every rank, not a part of a sum."""
    multiplications: Callable[..., int] | None = None
    """The multiplications of forward's matrix products, from the shapes of y and the inputs, and the settings."""
    backward_products: Mapping[str, float] = field(default_factory=dict)
    """The cost of the gradient of each input, in matrix products of forward."""

    def __post_init__(self) -> None:
        if self.backward is not None and not self.needs:
            parameters = inspect.signature(self.backward).parameters
            arrays = tuple(name for name in (*self.inputs, "y") if name in parameters)
            object.__setattr__(self, "needs", dict.fromkeys(self.inputs, arrays))
        read = [name for names in self.needs.values() for name in names if name != "y"]
        for name in (*read, *self.needs, *self.passes):
            if name not in self.inputs:
                raise ZerosimError(f"{self.name} declares {name!r}, which is no input of its forward; those are "
                                   f"{', '.join(self.inputs)}")

    @property
    def name(self) -> str:
        return self.forward.__name__.removesuffix("_forward")

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """The names of forward's input arrays."""
        parameters = inspect.signature(self.forward).parameters.values()
        return tuple(x.name for x in parameters if x.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD)

    @cached_property
    def saves(self) -> bool:
        """Whether backward reads an array that forward returns beside y."""
        return self.backward is not None and "saved" in inspect.signature(self.backward).parameters

    @cached_property
    def draws(self) -> bool:
        """Whether it draws random numbers."""
        return "draws" in inspect.signature(self.forward).parameters

    def on_shapes(self, shapes: Sequence[Shape], settings: Mapping[str, Any]) -> tuple[Any, list[Any]]:
        """y and the inputs as extents. Raises `ZerosimError` if forward cannot compute with inputs of these shapes."""
        inputs, drawing = [Extent(shape, np.float32) for shape in shapes], {"draws": None} if self.draws else {}
        try:
            y = self.forward(*inputs, empty=Extent, **settings, **drawing)
        except (CollectiveError, ArithmeticError, LookupError, ValueError) as error:
            named = ", ".join(f"{name} {shape}" for name, shape in zip(self.inputs, shapes, strict=False))
            raise ZerosimError(f"{self.name} cannot be computed of {named}: {error}") from error
        return (y[0] if self.saves else y), inputs

    def __call__(self, *inputs: Value, **settings: Any) -> Value:
        return inputs[0].graph.apply(self, inputs, settings)
