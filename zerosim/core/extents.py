"""Extents: shape and dtype without values, for messages and computations of which only sizes matter, at any size.

Extents implement NumPy's protocols (`__array_ufunc__`, `__array_function__`), so operations, the tape and stages run on
them unchanged, and the work arrays of operations are counted as well. A ledger then knows the memory of a model of 70
billion parameters without allocating it.

- A NumPy function that is not in `FUNCTIONS` raises an error. It must be added there with the shape of its result.
- Slices whose bounds are vectors stand for all ranks at once (see `worlds/lockstep.py`). Unequal lengths raise
  `Unlike`.
- Values do not exist. Code that branches on values cannot run on extents; only `float(extent)` gives a number, 0.0.
"""

import operator
from collections.abc import Callable, Iterator
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

from zerosim.core.allocation import Kind
from zerosim.core.errors import CollectiveError, Unlike

Shape = tuple[int, ...]
COMPARISONS = frozenset({np.isnan, np.greater, np.greater_equal, np.less, np.less_equal, np.equal, np.not_equal})


class Extent(np.lib.mixins.NDArrayOperatorsMixin):
    """An array of `shape` and `dtype` without values.

    It can be sliced, reshaped, copied, received into, reduced and computed with like an array: results have
    the shapes of NumPy's. The `base` of a view is the extent that it views.

    >>> vector = Extent(10, np.float32)
    >>> vector[3:8], vector.nbytes
    (Extent(5, float32), 40)
    >>> np.add(vector, vector, out=vector)
    Extent(10, float32)
    >>> np.matmul(Extent((4, 8, 2), np.float32), Extent((2, 3), np.float32)).sum(axis=-1)
    Extent((4, 8), float32)
    """

    __slots__ = ("__weakref__", "base", "dtype", "shape", "strides")
    walked = False
    """Whether loops over pieces run for each piece, although one piece determines the shapes of all."""

    def __init__(
        self, shape: int | Shape, dtype: npt.DTypeLike, base: "Extent | None" = None, strides: Shape | None = None
    ) -> None:
        self.shape = shape if isinstance(shape, tuple) else (operator.index(shape),)
        self.dtype = np.dtype(dtype)
        self.base = base
        self.strides = strides
        """The elements of memory from one index of each dimension to the next; None for an array in C order."""

    @property
    def in_one_piece(self) -> bool:
        """Whether its elements lie in C order, so that a reshape is a view; a real array says `flags.c_contiguous`.

        >>> turned = Extent((2, 3), np.float32).T
        >>> turned.in_one_piece, turned.T.in_one_piece, Extent((1, 3), np.float32).T.in_one_piece
        (False, True, True)
        >>> turned[:, :1].in_one_piece, turned.T[:1].in_one_piece
        (True, True)
        """
        pairs = zip(self.strides or (), in_c_order(self.shape), self.shape, strict=False)
        return not self.size or all(stride == packed for stride, packed, length in pairs if length != 1)

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def T(self) -> "Extent":  # noqa: N802 - NumPy's name
        return self.transpose()

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator["Extent"]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: Any) -> "Extent":
        if isinstance(index, slice) and self.strides is None and index.step is None:
            return self.viewed((stretch(index, self.shape[0]), *self.shape[1:]))
        if isinstance(index, int) and self.strides is None and 0 <= index < self.shape[0]:
            return self.viewed(self.shape[1:])
        if any(isinstance(part, (np.ndarray, list)) for part in (index if isinstance(index, tuple) else (index,))):
            return self.viewed(np.broadcast_to(np.empty((), np.bool_), self.shape)[index].shape)
        seen = as_strided(np.empty((), np.bool_), self.shape, self.strides or in_c_order(self.shape))[index]
        return self.viewed(seen.shape, seen.strides)

    def __setitem__(self, index: Any, other: Any) -> None:
        """Write nothing: lengths are compared when a message arrives."""

    def __float__(self) -> float:
        return 0.0

    def viewed(self, shape: Shape, strides: Shape | None = None) -> "Extent":
        """A view in a different shape."""
        return Extent(shape, self.dtype, self if self.base is None else self.base, strides)

    def reshape(self, *shape: Any) -> "Extent":
        wanted = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape
        known = prod(length for length in wanted if length != -1)
        full = tuple(self.size // known if length == -1 else length for length in wanted)
        if prod(full) != self.size:
            raise CollectiveError(f"{self} has {self.size} elements, and not the shape {wanted}")
        return self.viewed(full)

    def ravel(self) -> "Extent":
        return self.reshape(-1)

    def transpose(self, *axes: Any) -> "Extent":
        order = axes[0] if len(axes) == 1 else axes or range(self.ndim)[::-1]
        before = self.strides or in_c_order(self.shape)
        return self.viewed(tuple(self.shape[axis] for axis in order), tuple(before[axis] for axis in order))

    def astype(self, dtype: npt.DTypeLike, copy: bool = True) -> "Extent":
        return self if self.dtype == np.dtype(dtype) and not copy else Extent(self.shape, dtype)

    def sum(self, **keywords: Any) -> "Extent":
        return reduced(self, **keywords)

    max = mean = sum

    def copy(self) -> "Extent":
        """The extent itself: it has nothing that could change."""
        return self

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **_: Any) -> "Extent | None":
        if method == "at":
            return None
        shape = (multiplied if ufunc is np.matmul else broadcast)(*inputs)
        target = out[0] if out else Extent(shape or (), np.bool_ if ufunc in COMPARISONS else next(
            x.dtype for x in inputs if isinstance(x, Extent)))
        if method != "__call__" or shape is None or target.shape != shape:
            raise CollectiveError(f"np.{ufunc.__name__} of extents {inputs}: their lengths must be equal")
        return target

    def __array_function__(self, function: Callable[..., Any], _: Any, inputs: Any, keywords: Any) -> Any:
        if function.__name__ not in FUNCTIONS:
            raise CollectiveError(f"np.{function.__name__} is not for extents")
        return FUNCTIONS[function.__name__](*inputs, **keywords)

    def __repr__(self) -> str:
        return f"Extent({self.shape[0] if self.ndim == 1 else self.shape}, {self.dtype})"


def extent(shape: int | tuple[int, ...], dtype: npt.DTypeLike, *, kind: Kind, owner: str) -> Any:
    """An `Extent`: called like `allocate`, without memory."""
    return Extent(shape, dtype)


def owner(array: Any) -> Any:
    """The array or extent that owns the memory of a view.

    >>> vector = Extent(4, np.float32)
    >>> owner(vector[:2].reshape(1, 2)) is vector
    True
    """
    while getattr(array, "base", None) is not None:
        array = array.base
    return array


def in_c_order(shape: Shape) -> Shape:
    """The strides of an array in C order, in elements.

    >>> in_c_order((2, 3, 4))
    (12, 4, 1)
    """
    return tuple(accumulate(shape[:0:-1], operator.mul, initial=1))[len(shape) == 0 :][::-1]


def stretch(index: slice, length: int) -> int:
    """The number of elements in a slice of `length`; its bounds may be vectors with a number for each rank.

    Raises `Unlike` if ranks would have pieces of several lengths.

    >>> rank = np.arange(4)
    >>> stretch(slice(3, 20), 12), stretch(slice(3 * rank, 3 * rank + 3), 12)
    (9, 3)
    """
    if not isinstance(index.start, np.ndarray) and not isinstance(index.stop, np.ndarray):
        start, stop, _ = index.indices(length)
        return max(stop - start, 0)
    first, last = (
        np.clip(np.asarray(default if bound is None else bound), 0, length)
        for bound, default in ((index.start, 0), (index.stop, length))
    )
    lengths = np.maximum(last - first, 0)
    if np.ptp(lengths):
        raise Unlike("ranks would do different things: their pieces of a vector are not equally long")
    return int(lengths.flat[0])


def broadcast(*inputs: Any) -> Shape | None:
    """The shape of an elementwise result; None if shapes are incompatible."""
    shapes = [x.shape if isinstance(x, Extent) else np.shape(x) for x in inputs]
    if all(shape == shapes[0] for shape in shapes):
        return shapes[0]
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        return None


def multiplied(left: Any, right: Any) -> Shape | None:
    """The shape of a matrix product; None if shapes are incompatible.

    >>> multiplied(np.empty((5, 2, 3)), np.empty((3, 4)))
    (5, 2, 4)
    """
    if left.shape[-1] != right.shape[-2]:
        return None
    return (*np.broadcast_shapes(left.shape[:-2], right.shape[:-2]), left.shape[-2], right.shape[-1])


def reduced(x: Extent, axis: int | None = None, keepdims: bool = False, out: Extent | None = None) -> Extent:
    """The extent of a reduction along `axis`, or over all axes."""
    axes = range(x.ndim) if axis is None else [axis % x.ndim]
    lengths = [1 if axis_ in axes else length for axis_, length in enumerate(x.shape)]
    kept = [length for axis_, length in enumerate(lengths) if keepdims or axis_ not in axes]
    return out if out is not None else Extent(tuple(kept), x.dtype)


def taken(x: Extent, indices: Any, axis: int = 0, out: Extent | None = None, mode: str = "raise") -> Extent:
    """The extent of `np.take` along the first axis."""
    return out if out is not None else Extent((*np.shape(indices), *x.shape[1:]), x.dtype)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "sum": reduced, "max": reduced, "amax": reduced, "mean": reduced, "take": taken,
    "copyto": lambda target, source, where=True: None, "shape": lambda x: x.shape,
    "dot": lambda x, y: Extent((), x.dtype),
    "argsort": lambda x, axis=-1, kind=None: Extent(x.shape, np.int64),
    "cumsum": lambda x, axis=None: Extent(x.size if axis is None else x.shape, np.int64),
    "take_along_axis": lambda x, indices, axis: Extent(np.shape(indices), x.dtype),
    "concatenate": lambda parts: Extent(sum(map(len, parts)), parts[0].dtype),
}
"""NumPy's functions that accept extents, besides ufuncs, and the extents that they return."""
