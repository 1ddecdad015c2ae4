"""The NumPy calls of an operation, and their times on a device that has rates for calls.

    product        2 · m · k · n operations per matrix product, at the rate that its narrowest side allows
    exp, max, …    numbers read or written, at the function's own rate
    any call       bytes read and written, at the memory bandwidth for that number of bytes

A call takes the longest of these times, plus its launch. On devices with fused kernels an operation has one launch
(see `costs`). Here the operation runs on shapes that report every call.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import log, prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from zerosim.autograd.operation import Into
from zerosim.core.extents import Extent, Shape


class NumpyCall(NamedTuple):
    """One call: function, sides m, k, n and number of its products, numbers, bytes read and written."""

    name: str
    sides: tuple[int, int, int, int] | None
    numbers: int
    moved_bytes: int


Report = Callable[[NumpyCall], None]


class NotedExtent(Extent):
    """An extent that reports every call on it and on everything computed from it.

    >>> calls = []
    >>> x = NotedExtent((2, 3), np.float32, report=calls.append)
    >>> x *= 2.0
    >>> np.matmul(x, x.T).max(axis=-1)
    Extent(2, float32)
    >>> for call in calls:
    ...     print(*call)
    multiply None 6 48
    matmul (2, 3, 2, 1) 4 64
    max None 4 24
    """

    __slots__ = ("report",)
    walked = True

    def __init__(
        self, shape: int | Shape, dtype: npt.DTypeLike, base: Extent | None = None, strides: Shape | None = None, *,
        report: Report,
    ) -> None:
        super().__init__(shape, dtype, base, strides)
        self.report = report

    def viewed(self, shape: Shape, strides: Shape | None = None) -> "NotedExtent":
        return NotedExtent(shape, self.dtype, self if self.base is None else self.base, strides, report=self.report)

    def _reported(self, name: str, inputs: Any, found: Any) -> Any:
        """`found` as a `NotedExtent`, after reporting the call that made it."""
        read = [each for each in inputs if isinstance(each, Extent | np.ndarray)]
        written = found.nbytes if isinstance(found, Extent) else 0
        numbers = max((each.size for each in (*read, found) if isinstance(each, Extent)), default=0)
        sides = None
        if name == "matmul":
            (*_, rows, inner), (*_, columns) = read[0].shape, read[1].shape
            sides = (rows, inner, columns, prod(found.shape[:-2]))
            numbers = found.size
        moved = sum(each.nbytes for each in read) + written
        if name in ("take", "scatter"):
            rows = found if name == "take" else read[-1]
            numbers, moved = rows.size, 2 * rows.nbytes
        self.report(NumpyCall(name, sides, numbers, moved))
        if isinstance(found, Extent) and not isinstance(found, NotedExtent):
            return NotedExtent(found.shape, found.dtype, report=self.report)
        return found

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **named: Any) -> Any:
        found = super().__array_ufunc__(ufunc, method, *inputs, out=out, **named)
        return self._reported("scatter" if method == "at" else ufunc.__name__, inputs, found)

    def __array_function__(self, function: Callable[..., Any], types: Any, inputs: Any, keywords: Any) -> Any:
        found = super().__array_function__(function, types, inputs, keywords)
        name = {"amax": "max"}.get(function.__name__, function.__name__)
        return found if name == "shape" else self._reported(name, inputs, found)

    def __setitem__(self, index: Any, other: Any) -> None:
        self._reported("copyto", [other], self[index])

    def sum(self, **keywords: Any) -> Any:
        return self._reported("sum", [self], super().sum(**keywords))

    def max(self, **keywords: Any) -> Any:
        return self._reported("max", [self], super().max(**keywords))

    def mean(self, **keywords: Any) -> Any:
        return self._reported("mean", [self], super().mean(**keywords))


@dataclass(frozen=True)
class Rates:
    """The rates of a device for calls, per second; a function without a rate takes the time of its bytes."""

    launch_ns: float
    product: tuple[float, float]
    """Operations per second of wide products, and the narrowest side at which half of that rate is reached."""
    bandwidths: tuple[tuple[float, float], ...]
    """Bytes per call, ascending, each with the bytes per second that such a call reads and writes."""
    functions: dict[str, float]
    """Numbers per second, by function."""

    def ns(self, call: NumpyCall) -> float:
        """
        >>> Rates(5, (2e9, 2), ((8, 1e9), (800, 1e8)), {"exp": 1e9}).ns(NumpyCall("exp", None, 100, 8))
        105.0
        """
        worked = 0.0
        if call.sides is not None:
            *sides, count = call.sides
            worked = 2 * prod(sides) * count / (self.product[0] * min(sides) / (min(sides) + self.product[1]))
        elif call.name in self.functions:
            worked = call.numbers / self.functions[call.name]
        return self.launch_ns + 1e9 * max(worked, call.moved_bytes / self.bandwidth(call.moved_bytes))

    def bandwidth(self, moved_bytes: int) -> float:
        """The bandwidth for calls of that many bytes, interpolated over the logarithms of the measured sizes."""
        sizes, rates = zip(*self.bandwidths, strict=True)
        return float(np.interp(log(max(moved_bytes, 1)), np.log(sizes), rates))


def calls_of(function: Callable[..., Any], arrays: tuple[Any, ...], named: dict[str, Any]) -> list[NumpyCall]:
    """The calls that `function` makes on extents; the callers' own `report` does not see them."""
    found: list[NumpyCall] = []

    def noted(value: Any) -> Any:
        if isinstance(value, Into):
            return value.seen_as(noted)
        return NotedExtent(value.shape, value.dtype, report=found.append) if isinstance(value, Extent) else value

    def empty(shape: Shape, dtype: npt.DTypeLike) -> NotedExtent:
        return NotedExtent(shape, dtype, report=found.append)

    function(*map(noted, arrays), **{name: noted(each) for name, each in named.items()} | {"empty": empty})
    return found


def silent(value: Any) -> Any:
    """Views of the same extents that do not report calls."""
    if isinstance(value, Into):
        return value.seen_as(silent)
    if isinstance(value, list):
        return [silent(each) for each in value]
    return Extent(value.shape, value.dtype, value) if isinstance(value, NotedExtent) else value


def loud(value: Any) -> Any:
    """The extent that `silent` has made a view of."""
    return value.base if isinstance(value, Extent) and isinstance(value.base, NotedExtent) and (
        value.shape == value.base.shape) else value
