"""Float64 arrays that carry a proved bound of their rounding errors: a running error analysis.

    u       2⁻⁵³, the unit roundoff: fl(a ∘ b) = (a ∘ b)(1 + δ), |δ| ≤ u
    γₙ      n u / (1 − n u): n roundings in any order multiply by 1 + θ, |θ| ≤ γₙ
    Δa      the bound that array a carries: its exact value is within a ± Δa, number by number

Code that computes with NumPy computes with these arrays unchanged, so bounds are those of the code that runs. Every
function adds what it passes on of its inputs' bounds to its own rounding:

    a ± b              Δa + Δb + u |y|                        a b    |a| Δb + |b| Δa + Δa Δb + u |y|
    a / b              (Δa + |y| Δb) / (|b| − Δb) + u |y|     Σₙ a   Σ Δa + γₙ Σ |a|
    A B, n products    |A| ΔB + ΔA (|B| + ΔB) + γₙ |A| |B|    √a     min(Δa / √a, √Δa) + u y
    exp, log, tanh, …  the largest slope within a ± Δa, times Δa, + 8 u |y|: at most 4 units in the last place

Every result may underflow by 2⁻¹⁰⁰⁰ besides. Bounds round as well: theirs are fewer than 2³² roundings of sums without
cancellation, so `bound` adds 2⁻²⁰ of each. Choices (a maximum's place, y > 0, queues) count as equal. Functions without
a rule raise `NotBounded`.

Sources: Higham, "Accuracy and stability of numerical algorithms" (2002), sections 2.2, 3.1, 3.3 and 3.5; the largest
errors of elementary functions: Zimmermann et al., "Accuracy of mathematical functions" (2023).
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from zerosim.allocation import Array
from zerosim.errors import ZerosimError

UNIT = 2.0**-53
UNDERFLOW = 2.0**-1000
INFLATED = 1.0 + 2.0**-20


class NotBounded(ZerosimError):
    """A function of which no bound is known."""


def gamma(roundings: int) -> float:
    """γₙ.

    >>> gamma(2) > 2 * UNIT
    True
    """
    return roundings * UNIT / (1.0 - roundings * UNIT)


class Bounded(np.ndarray[Any, Any]):
    """An array whose memory is followed by that of its bounds, so that views of it have theirs.

    >>> third = bounded(np.ones(2)) / bounded(np.full(2, 3.0))
    >>> bool((abs(1 / 3 - np.asarray(third)) < bound(third)).all()), bool((bound(third) < 1e-16).all())
    (True, True)
    """

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, out: tuple[Any, ...] = (), **named: Any
    ) -> Any:
        if ufunc is np.add and method == "at":
            return added_at(*inputs)
        values, bounds = [values_of(each) for each in inputs], [carried(each) for each in inputs]
        if ufunc in CHOICES or not any(each.dtype.kind == "f" for each in values):
            return getattr(ufunc, method)(*values, out=tuple(map(values_of, out)) or None, **named)
        key = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
        if key not in RULES:
            raise NotBounded(f"no bound is known of the rounding of numpy.{key}")
        with np.errstate(all="ignore"):
            result = np.asarray(getattr(ufunc, method)(*values, **named))
            errors = RULES[key](values, bounds, result, **(named if method == "reduce" else {}))
        into = out[0] if out else bounded(np.empty(result.shape))
        values_of(into)[...] = result
        if isinstance(into, Bounded):
            carried(into)[...] = np.where(np.isfinite(result), errors, 0.0) + UNDERFLOW
        return into

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func is np.copyto:
            into, given = args
            for of in (values_of, carried):
                np.copyto(of(into), of(given), **kwargs)
            return None
        if func.__name__ not in THROUGH:
            raise NotBounded(f"no bound is known of the rounding of numpy.{func.__name__}")
        return super().__array_function__(func, types, args, kwargs)

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        return found if not isinstance(found, np.ndarray) or shared(found, self) else bounded(
            values_of(self)[index], carried(self)[index])

    def __setitem__(self, index: Any, given: Any) -> None:
        values_of(self)[index] = values_of(given)
        carried(self)[index] = carried(given)

    def reshape(self, *shape: Any, **named: Any) -> Any:
        found = super().reshape(*shape, **named)
        return found if shared(found, self) else bounded(
            values_of(self).reshape(*shape), carried(self).reshape(*shape))

    def copy(self, *_: Any) -> Any:
        return bounded(values_of(self).copy(), carried(self))

    def take(  # type: ignore[override]
        self, indices: Any, axis: int | None = None, out: Any = None, mode: Any = "raise",
    ) -> Any:
        found = bounded(values_of(self).take(indices, axis, None, mode), carried(self).take(indices, axis, None, mode))
        if out is None:
            return found
        out[...] = found
        return out


def shared(one: Array, other: Array) -> bool:
    """Whether one array is a view of the other's memory."""
    return np.may_share_memory(values_of(one), values_of(other))


def bounded(values: Array, errors: Any = 0.0) -> Any:
    """A copy of `values`, whose bounds are `errors`."""
    memory = np.empty((2, *values.shape))
    memory[0], memory[1] = values, errors
    return memory[0].view(Bounded)


def allocate_bounded(shape: Any, dtype: Any, **_: Any) -> Any:
    """Memory, in float64 with bounds."""
    memory = np.empty(shape, dtype)
    return bounded(memory, 0.0) if memory.dtype == np.float64 else memory


def values_of(given: Any) -> Array:
    """The numbers."""
    return given.view(np.ndarray) if isinstance(given, Bounded) else np.asarray(given)


def carried(given: Any) -> Array:
    """The bounds, a view; zeros of what is exact."""
    if not isinstance(given, Bounded):
        return np.broadcast_to(0.0, np.shape(given))
    memory: Any = given
    while memory.base is not None:
        memory = memory.base
    start = given.__array_interface__["data"][0] - memory.__array_interface__["data"][0] + memory.nbytes // 2
    if not memory.nbytes // 2 <= start <= memory.nbytes:
        raise NotBounded("an array was copied without its bounds")
    return np.ndarray(given.shape, given.dtype, memory, start if given.size else 0, given.strides)


def bound(given: Any) -> Array:
    """The bounds, with those of their own rounding."""
    return carried(given) * INFLATED


def sums(values: Any, bounds: Any, y: Any, **_: Any) -> Any:
    return bounds[0] + bounds[1] + UNIT * np.abs(y)


def of_products(values: Any, bounds: Any, y: Any, **_: Any) -> Any:
    (a, b), (da, db) = map(np.abs, values), bounds
    return a * db + b * da + da * db + UNIT * np.abs(y)


def quotients(values: Any, bounds: Any, y: Any, **_: Any) -> Any:
    least = np.abs(values[1]) - bounds[1]
    return np.where(least > 0.0, (bounds[0] + np.abs(y) * bounds[1]) / least, np.inf) + UNIT * np.abs(y)


def matrices(values: Any, bounds: Any, y: Any, **_: Any) -> Any:
    (a, b), (da, db) = map(np.abs, values), bounds
    return gamma(a.shape[-1]) * (a @ b) + a @ db + da @ (b + db)


def added(values: Any, bounds: Any, y: Any, **named: Any) -> Any:
    terms = np.abs(values[0])
    count = terms.size // max(np.size(y), 1)
    return np.add.reduce(bounds[0], **named) + gamma(count) * np.add.reduce(terms, **named)


def added_at(into: Any, index: Any, x: Any) -> None:
    """Add x to the numbers of `into` at an index, each as often as it is there."""
    size, terms = np.abs(values_of(into)), values_of(x)
    for array, term in ((size, np.abs(terms)), (values_of(into), terms), (carried(into), carried(x))):
        np.add.at(array, index, term)
    carried(into)[...] += gamma(np.size(terms)) * size


def largest(values: Any, bounds: Any, y: Any, **named: Any) -> Any:
    return np.maximum.reduce(bounds[0], **named) if named else np.maximum(*bounds)


def of_slope(slope: Callable[[Any, Any, Any], Any]) -> Callable[..., Any]:
    """The rule of an elementary function; `slope(a, Δa, y)` is the largest within a ± Δa."""
    def rule(values: Any, bounds: Any, y: Any, **_: Any) -> Any:
        (a,), (da,) = values, bounds
        return np.where(da > 0.0, slope(a, da, y) * da, 0.0) + 8.0 * UNIT * np.abs(y)
    return rule


CHOICES = (np.greater, np.greater_equal, np.less, np.less_equal, np.equal, np.not_equal, np.isfinite, np.isnan, np.sign)
THROUGH = ("sum", "mean", "max", "amax", "min", "take", "argsort", "argmax", "take_along_axis", "may_share_memory",
           "shape", "ndim", "size", "empty_like", "expand_dims", "swapaxes", "transpose", "reshape", "ravel")
RULES: Mapping[str, Callable[..., Any]] = {
    "add": sums, "subtract": sums, "multiply": of_products, "divide": quotients, "matmul": matrices,
    "add.reduce": added, "maximum": largest, "minimum": largest, "maximum.reduce": largest,
    "negative": lambda values, bounds, y: bounds[0], "absolute": lambda values, bounds, y: bounds[0],
    "square": lambda values, bounds, y: of_products(values * 2, bounds * 2, y),
    "sqrt": of_slope(lambda a, da, y: np.minimum(1.0 / y, 1.0 / np.sqrt(da))),
    "exp": of_slope(lambda a, da, y: np.exp(da) * y),
    "log": of_slope(lambda a, da, y: np.where(a > da, 1.0 / (a - da), np.inf)),
    "tanh": of_slope(lambda a, da, y: 1.0 - np.tanh(np.maximum(np.abs(a) - da, 0.0))**2 + 4.0 * UNIT),
    "sin": of_slope(lambda a, da, y: 1.0), "cos": of_slope(lambda a, da, y: 1.0),
}
