"""Views and other operations on shapes alone, and what is said of shapes that do not go together."""

from math import prod
from typing import Any

import numpy as np

from zerosim.allocation import Array
from zerosim.autograd.operation import Empty, Operation, Shape
from zerosim.errors import ZerosimError


def rows(array: Any) -> Any:
    """All but the last dimension as one: (…, n) as (rows, n).

    >>> rows(np.zeros((2, 3, 4))).shape
    (6, 4)
    """
    return array if len(array.shape) == 2 else array.reshape(-1, array.shape[-1])


def elements(shape: Shape) -> int:
    """How many numbers an array of this shape has."""
    return prod(shape)


def refuse(operation: str, wants: str, *found: Shape | None) -> ZerosimError:
    """What to raise of shapes that an operation cannot take."""
    shapes = ", ".join(str(shape) for shape in found if shape is not None)
    return ZerosimError(f"{operation} wants {wants}, found {shapes}")


def same_shape(x: Shape, **_: Any) -> Shape:
    return x


def reshape_forward(x: Array, *, out: Array | None, empty: Empty, shape: Shape) -> Array:
    """The same numbers, in C order, in another shape: a view where x lies in one piece.

    >>> reshape_forward(np.array([[1, 2], [3, 4]]), out=None, empty=np.empty, shape=(4,))
    array([1, 2, 3, 4])
    """
    return x.reshape(shape)


def reshape_shape(x: Shape, *, shape: Shape) -> Shape:
    if elements(x) != elements(shape):
        raise refuse("reshape", f"as many numbers as {shape} has", x)
    return shape


def reshape_upstream(upstream: Array, x: Shape, *, shape: Shape) -> Array:
    """∂L/∂x: upstream in the shape of x."""
    return upstream.reshape(x)


def transpose_forward(x: Array, *, out: Array | None, empty: Empty, axes: tuple[int, ...]) -> Array:
    """Dimension i of y is dimension axes[i] of x: a view.

    >>> transpose_forward(np.array([[1, 2], [3, 4]]), out=None, empty=np.empty, axes=(1, 0))
    array([[1, 3],
           [2, 4]])
    """
    return x.transpose(axes)


def transpose_shape(x: Shape, *, axes: tuple[int, ...]) -> Shape:
    if sorted(axes) != list(range(len(x))):
        raise refuse("transpose", f"axes that name each dimension once, not {axes}", x)
    return tuple(x[axis] for axis in axes)


def transpose_upstream(upstream: Array, x: Shape, *, axes: tuple[int, ...]) -> Array:
    """∂L/∂x: every dimension back to where it was."""
    back: list[int] = np.argsort(axes).tolist()
    return upstream.transpose(back)


reshape = Operation(reshape_forward, None, reshape_shape, {}, passed={"x": reshape_upstream}, views=True)
transpose = Operation(transpose_forward, None, transpose_shape, {}, passed={"x": transpose_upstream}, views=True)
