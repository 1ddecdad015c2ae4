"""Elementwise operations: sums, products and activations."""

import math
from collections.abc import Callable

import numpy as np

from zerosim.autograd.operation import Empty, Into, Operation, refuse
from zerosim.autograd.operations.shapes import piecewise
from zerosim.core.allocation import Array


def add_forward(x: Array, other: Array, *, empty: Empty) -> Array:
    """y = x + other, both of one shape.

    >>> add_forward(np.array([1.0, 2.0]), np.array([3.0, 4.0]), empty=np.empty)
    array([4., 6.])
    """
    check_alike(x, other)
    return np.add(x, other, out=empty(x.shape, x.dtype))


def add_backward(upstream: Array, into: Into, *, empty: Empty) -> None:
    """∂L/∂x = ∂L/∂other = upstream."""
    into["x"] = into["other"] = upstream


def check_alike(x: Array, other: Array) -> None:
    """Raise `ZerosimError` if the shapes differ: nothing is broadcast."""
    if x.shape != other.shape:
        raise refuse("an operation on two arrays, number by number,", "one shape", x.shape, other.shape)


def multiply_forward(x: Array, other: Array, *, empty: Empty) -> Array:
    """y = x · other, both of one shape.

    >>> multiply_forward(np.array([1.0, 2.0]), np.array([3.0, 4.0]), empty=np.empty)
    array([3., 8.])
    """
    check_alike(x, other)
    return np.multiply(x, other, out=empty(x.shape, x.dtype))


def multiply_backward(
    upstream: Array, into: Into, *, empty: Empty, x: Array | None = None, other: Array | None = None
) -> None:
    """∂L/∂x = upstream · other;  ∂L/∂other = upstream · x."""
    for name, factor in (("x", other), ("other", x)):
        if name in into and factor is not None:
            np.multiply(upstream, factor, out=into[name])


def scale_forward(x: Array, *, empty: Empty, factor: float) -> Array:
    """y = factor · x, of any shape; `factor` is a number.

    >>> scale_forward(np.array([1.0, 2.0]), empty=np.empty, factor=-0.5)
    array([-0.5, -1. ])
    """
    return np.multiply(x, factor, out=empty(x.shape, x.dtype))


def scale_backward(upstream: Array, into: Into, *, empty: Empty, factor: float) -> None:
    """∂L/∂x = factor · upstream."""
    np.multiply(upstream, factor, out=into["x"])


def in_pieces(of: Callable[..., None], gradient: Callable[..., None], *, reads: str, work: int = 0) -> Operation:
    """The operation y = f(x), number by number and of any shape, which computes one piece of rows after the other.

    `of(x, y)` writes y, and `gradient(read, upstream, out, *scratch)` ∂L/∂x from x or y, as `reads` says; `scratch` is
    `work` arrays.
    """

    def forward(x: Array, *, empty: Empty) -> Array:
        piecewise(of, x, y := empty(x.shape, x.dtype), empty=empty)
        return y

    def backward(upstream: Array, into: Into, *, empty: Empty, **read: Array) -> None:
        piecewise(gradient, read[reads], upstream, into["x"], empty=empty, work=work)

    forward.__name__, forward.__doc__ = of.__name__.removesuffix("_of") + "_forward", of.__doc__
    return Operation(forward, backward, {"x": (reads,)})


def relu_of(x: Array, y: Array) -> None:
    """y = max(x, 0), of any shape.

    >>> relu.forward(np.array([-1.0, 2.0]), empty=np.empty)
    array([0., 2.])
    """
    np.maximum(x, 0.0, out=y)


def relu_gradient(y: Array, upstream: Array, gradient: Array) -> None:
    """∂L/∂x = upstream · (1 where y > 0, otherwise 0)."""
    np.multiply(upstream, y > 0.0, out=gradient)


def tanh_of(x: Array, y: Array) -> None:
    """y = tanh x, of any shape.

    >>> tanh.forward(np.array([0.0, 100.0]), empty=np.empty)
    array([0., 1.])
    """
    np.tanh(x, out=y)


def tanh_gradient(y: Array, upstream: Array, gradient: Array, slope: Array) -> None:
    """∂L/∂x = upstream (1 − y²)."""
    np.square(y, out=slope)
    np.subtract(1.0, slope, out=slope)
    np.multiply(upstream, slope, out=gradient)


ROOT = math.sqrt(2.0 / math.pi)
CUBIC = 0.044715
ERF = np.frompyfunc(math.erf, 1, 1)


def gelu_of(x: Array, y: Array) -> None:
    """y = ½ x (1 + tanh u) with u = √(2/π) (x + 0.044715 x³), of any shape.

    The tanh form of Hendrycks and Gimpel, "Gaussian error linear units" (2016), section 2.

    >>> gelu.forward(np.array([-9.0, 0.0, 9.0]), empty=np.empty) + 0.0
    array([0., 0., 9.])
    """
    gelu_tanh(x, y)
    y += 1.0
    y *= x
    y *= 0.5


def gelu_gradient(x: Array, upstream: Array, gradient: Array, t: Array, slope: Array) -> None:
    """∂L/∂x = upstream ½ (1 + t + x (1 − t²) u′), t = tanh u, u′ = √(2/π) (1 + 3 · 0.044715 x²)."""
    gelu_tanh(x, t)
    np.square(t, out=slope)
    np.subtract(1.0, slope, out=slope)
    slope *= x  # before u′, so that far from 0, where 1 − t² is 0, no product overflows
    np.multiply(x, x, out=gradient)
    gradient *= 3.0 * CUBIC * ROOT
    gradient += ROOT
    slope *= gradient
    slope += t
    slope += 1.0
    slope *= 0.5
    np.multiply(upstream, slope, out=gradient)


def gelu_exact_of(x: Array, y: Array) -> None:
    """y = ½ x (1 + erf(x/√2)), of any shape: the definition of GELU, and PyTorch's default. `math.erf` computes it
    number by number, which takes about 80 ns each.

    >>> gelu_exact.forward(np.array([-9.0, 0.0, 1.0]), empty=np.empty).round(6) + 0.0
    array([0.      , 0.      , 0.841345])
    """
    np.multiply(x, math.sqrt(0.5), out=y)
    ERF(y, out=y, casting="unsafe")
    y += 1.0
    y *= x
    y *= 0.5


def gelu_exact_gradient(x: Array, upstream: Array, gradient: Array, bell: Array) -> None:
    """∂L/∂x = upstream (½ (1 + erf(x/√2)) + x exp(−½ x²) / √(2π))."""
    np.square(x, out=bell)
    bell *= -0.5
    np.exp(bell, out=bell)
    bell *= x
    bell *= 1.0 / math.sqrt(2.0 * math.pi)
    np.multiply(x, math.sqrt(0.5), out=gradient)
    ERF(gradient, out=gradient, casting="unsafe")
    gradient += 1.0
    gradient *= 0.5
    gradient += bell
    gradient *= upstream


def gelu_tanh(x: Array, out: Array) -> None:
    u = np.square(x, out=out)
    u *= CUBIC
    u += 1.0
    u *= x
    u *= ROOT
    np.tanh(u, out=u)


def sigmoid_of(x: Array, y: Array) -> None:
    """y = 1 / (1 + e⁻ˣ) = ½ (1 + tanh ½ x), of any shape.

    >>> sigmoid.forward(np.array([0.0, 99.0]), empty=np.empty)
    array([0.5, 1. ])
    """
    np.multiply(x, 0.5, out=y)
    np.tanh(y, out=y)
    y += 1.0
    y *= 0.5


def sigmoid_gradient(y: Array, upstream: Array, gradient: Array, slope: Array) -> None:
    """∂L/∂x = upstream (1 − y) y."""
    np.subtract(1.0, y, out=slope)
    slope *= y
    np.multiply(upstream, slope, out=gradient)


def silu_of(x: Array, y: Array) -> None:
    """y = x σ(x), σ(x) = 1 / (1 + e⁻ˣ) = ½ (1 + tanh ½ x), of any shape.

    Elfwing, Uchibe and Doya, "Sigmoid-weighted linear units" (2018), section 2.

    >>> silu.forward(np.array([0.0, 99.0]), empty=np.empty)
    array([ 0., 99.])
    """
    sigmoid_of(x, y)
    y *= x


def silu_gradient(x: Array, upstream: Array, gradient: Array, sigma: Array, slope: Array) -> None:
    """∂L/∂x = upstream σ (1 + x (1 − σ))."""
    sigmoid_of(x, sigma)
    np.subtract(1.0, sigma, out=slope)
    slope *= x
    slope += 1.0
    slope *= sigma
    np.multiply(upstream, slope, out=gradient)


add = Operation(add_forward, add_backward, passes=("x", "other"))
multiply = Operation(multiply_forward, multiply_backward, {"x": ("other",), "other": ("x",)})
scale = Operation(scale_forward, scale_backward)
relu = in_pieces(relu_of, relu_gradient, reads="y")
tanh = in_pieces(tanh_of, tanh_gradient, reads="y", work=1)
gelu = in_pieces(gelu_of, gelu_gradient, reads="x", work=2)
gelu_exact = in_pieces(gelu_exact_of, gelu_exact_gradient, reads="x", work=1)
sigmoid = in_pieces(sigmoid_of, sigmoid_gradient, reads="y", work=1)
silu = in_pieces(silu_of, silu_gradient, reads="x", work=2)

ACTIVATIONS = {"relu": relu, "tanh": tanh, "gelu": gelu, "gelu_exact": gelu_exact}
GELUS = {"tanh": gelu, "exact": gelu_exact}
