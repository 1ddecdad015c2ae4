"""Reshape, transpose, and arrays cut into rows."""

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from zerosim.autograd.operation import Empty, Into, Operation, Shape, copy_of, refuse
from zerosim.core.allocation import Array


def rows(array: Any) -> Any:
    """All but the last dimension as one: (…, n) as (rows, n).

    >>> rows(np.zeros((2, 3, 4))).shape
    (6, 4)
    """
    return array if len(array.shape) == 2 else array.reshape(-1, array.shape[-1])


PIECE = 1 << 15
"""The numbers of each array per call: those of a few arrays fit in a core's cache."""


def piecewise(compute: Callable[..., None], *arrays: Array, empty: Empty, work: int = 0) -> None:
    """Call `compute` on the same rows of all arrays, which have one shape, one block of rows after the other.

    It also gets `work` further arrays of that size as scratch memory. Arrays that are not contiguous are passed whole;
    for arrays without numbers one block is enough, unless they need every one (`walked`).

    >>> x, out = np.ones((3, PIECE)), np.empty((3, PIECE))
    >>> def double(x, out, work):
    ...     print(x.shape)
    ...     np.multiply(x, 2.0, out=out)
    >>> piecewise(double, x, out, empty=np.empty, work=1)
    (1, 32768)
    (1, 32768)
    (1, 32768)
    >>> bool((out == 2.0).all())
    True
    """
    shape = arrays[0].shape
    if prod(shape) <= PIECE or not all(map(contiguous, arrays)):
        compute(*arrays, *(empty(shape, arrays[0].dtype) for _ in range(work)))
        return
    step, seen = max(1, PIECE // shape[-1]), [rows(array) for array in arrays]
    scratch = [empty((step, shape[-1]), arrays[0].dtype) for _ in range(work)]
    for start in range(0, len(seen[0]) if getattr(arrays[0], "walked", True) else 1, step):
        part = [array[start : start + step] for array in seen]
        compute(*part, *(array[: len(part[0])] for array in scratch))


def contiguous(array: Any) -> bool:
    """Whether the elements of an array or an extent lie in C order, so that a reshape is a view.

    >>> contiguous(np.ones((2, 3))), contiguous(np.ones((2, 3)).T)
    (True, False)
    """
    return bool(array.flags.c_contiguous) if isinstance(array, np.ndarray) else array.in_one_piece


def in_one_piece(x: Array, empty: Empty) -> Array:
    """x in C order: itself, or a copy in memory of `empty`."""
    return x if contiguous(x) else copy_of(x, empty)


def reshape_forward(x: Array, *, empty: Empty, shape: Shape) -> Array:
    """y has the numbers of x, in C order, in a different shape: a view where x lies in one piece.

    >>> reshape_forward(np.array([[1, 2], [3, 4]]), empty=np.empty, shape=(4,))
    array([1, 2, 3, 4])
    """
    if prod(x.shape) != prod(shape):
        raise refuse("reshape", f"as many numbers as {shape} has", x.shape)
    return in_one_piece(x, empty).reshape(shape)


def reshape_backward(upstream: Array, into: Into, *, empty: Empty, shape: Shape) -> None:
    """∂L/∂x: upstream in the shape of x."""
    into["x"] = in_one_piece(upstream, empty).reshape(into.shapes["x"])


def transpose_forward(x: Array, *, empty: Empty, axes: tuple[int, ...]) -> Array:
    """Dimension i of y is dimension axes[i] of x: a view.

    >>> transpose_forward(np.array([[1, 2], [3, 4]]), empty=np.empty, axes=(1, 0))
    array([[1, 3],
           [2, 4]])
    """
    if sorted(axes) != list(range(len(x.shape))):
        raise refuse("transpose", f"axes that name each dimension once, not {axes}", x.shape)
    return x.transpose(axes)


def transpose_backward(upstream: Array, into: Into, *, empty: Empty, axes: tuple[int, ...]) -> None:
    """∂L/∂x: upstream with the inverse permutation of dimensions."""
    into["x"] = upstream.transpose([axes.index(axis) for axis in range(len(axes))])


reshape = Operation(reshape_forward, reshape_backward, passes=("x",))
transpose = Operation(transpose_forward, transpose_backward, passes=("x",))
