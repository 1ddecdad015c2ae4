"""Shape and dtype without values: what travels when only the schedule matters, at any size, for nothing."""

from typing import Any

import numpy as np
import numpy.typing as npt

from zerosim.errors import CollectiveError


class Extent:
    """A flat vector of `size` elements of `dtype`, none of which exists.

    It can be sliced, copied, received into and reduced like an array; a reduction only makes sure that both sides
    have the same length.

    >>> vector = Extent(10, np.float32)
    >>> vector[3:8], vector.nbytes
    (Extent(5, float32), 40)
    >>> np.add(vector, vector, out=vector)
    Extent(10, float32)
    """

    __slots__ = ("dtype", "shape", "size")

    def __init__(self, size: int, dtype: npt.DTypeLike) -> None:
        self.size = size
        self.shape = (size,)
        self.dtype = np.dtype(dtype)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: slice) -> "Extent":
        start, stop, _ = index.indices(self.size)
        return Extent(stop - start if stop > start else 0, self.dtype)

    def __setitem__(self, index: Any, other: "Extent") -> None:
        """Nothing to write: lengths are compared where a message arrives."""

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **_: Any) -> "Extent":
        if method != "__call__" or len({each.size for each in inputs}) != 1:
            raise CollectiveError(f"np.{ufunc.__name__} of extents {inputs}: their lengths must be equal")
        return self

    def copy(self) -> "Extent":
        """Itself: there is nothing that could change."""
        return self

    def __repr__(self) -> str:
        return f"Extent({self.size}, {self.dtype})"
