"""Elementwise operations: sums, products and activations."""

import math

import numpy as np

from zerosim.allocation import Array
from zerosim.autograd.operation import Empty, Operation, Shape
from zerosim.autograd.operations.shapes import itself, piecewise, refuse, same_shape


def add_forward(x: Array, other: Array, *, out: Array, empty: Empty) -> None:
    """y = x + other, both of one shape.

    >>> y = np.empty(2)
    >>> add_forward(np.array([1.0, 2.0]), np.array([3.0, 4.0]), out=y, empty=np.empty)
    >>> y
    array([4., 6.])
    """
    np.add(x, other, out=out)


def two_alike(x: Shape, other: Shape) -> Shape:
    """The shape of both inputs. Raises `ZerosimError` if they differ: nothing is broadcast."""
    if x != other:
        raise refuse("an operation on two arrays, number by number,", "one shape", x, other)
    return x


def multiply_forward(x: Array, other: Array, *, out: Array, empty: Empty) -> None:
    """y = x · other, both of one shape.

    >>> y = np.empty(2)
    >>> multiply_forward(np.array([1.0, 2.0]), np.array([3.0, 4.0]), out=y, empty=np.empty)
    >>> y
    array([3., 8.])
    """
    np.multiply(x, other, out=out)


def multiply_backward(
    upstream: Array, into: dict[str, Array], *, empty: Empty, x: Array | None = None, other: Array | None = None
) -> None:
    """∂L/∂x = upstream · other;  ∂L/∂other = upstream · x."""
    if "x" in into:
        assert other is not None
        np.multiply(upstream, other, out=into["x"])
    if "other" in into:
        assert x is not None
        np.multiply(upstream, x, out=into["other"])


def scale_forward(x: Array, *, out: Array, empty: Empty, factor: float) -> None:
    """y = factor · x, of any shape; `factor` is a number.

    >>> y = np.empty(2)
    >>> scale_forward(np.array([1.0, 2.0]), out=y, empty=np.empty, factor=-0.5)
    >>> y
    array([-0.5, -1. ])
    """
    np.multiply(x, factor, out=out)


def scale_backward(upstream: Array, into: dict[str, Array], *, empty: Empty, factor: float) -> None:
    """∂L/∂x = factor · upstream."""
    np.multiply(upstream, factor, out=into["x"])


def relu_forward(x: Array, *, out: Array, empty: Empty) -> None:
    """y = max(x, 0), of any shape.

    >>> y = np.empty(2)
    >>> relu_forward(np.array([-1.0, 2.0]), out=y, empty=np.empty)
    >>> y
    array([0., 2.])
    """
    np.maximum(x, 0.0, out=out)


def relu_backward(upstream: Array, into: dict[str, Array], *, empty: Empty, y: Array) -> None:
    """∂L/∂x = upstream · (1 where y > 0, otherwise 0)."""
    np.multiply(upstream, y > 0.0, out=into["x"])


def tanh_forward(x: Array, *, out: Array, empty: Empty) -> None:
    """y = tanh x, of any shape.

    >>> y = np.empty(2)
    >>> tanh_forward(np.array([0.0, 100.0]), out=y, empty=np.empty)
    >>> y
    array([0., 1.])
    """
    np.tanh(x, out=out)


def tanh_backward(upstream: Array, into: dict[str, Array], *, empty: Empty, y: Array) -> None:
    """∂L/∂x = upstream (1 − y²)."""
    piecewise(tanh_gradient, y, upstream, into["x"], empty=empty, work=1)


def tanh_gradient(y: Array, upstream: Array, gradient: Array, slope: Array) -> None:
    np.square(y, out=slope)
    np.subtract(1.0, slope, out=slope)
    np.multiply(upstream, slope, out=gradient)


ROOT = math.sqrt(2.0 / math.pi)
CUBIC = 0.044715


def gelu_forward(x: Array, *, out: Array, empty: Empty) -> None:
    """y = ½ x (1 + tanh u) with u = √(2/π) (x + 0.044715 x³), of any shape.

    The tanh form of Hendrycks and Gimpel, "Gaussian error linear units" (2016), section 2.

    >>> y = np.empty(3)
    >>> gelu_forward(np.array([-9.0, 0.0, 9.0]), out=y, empty=np.empty)
    >>> y + 0.0
    array([0., 0., 9.])
    """
    piecewise(gelu_of, x, out, empty=empty)


def gelu_of(x: Array, y: Array) -> None:
    gelu_tanh(x, y)
    y += 1.0
    y *= x
    y *= 0.5


def gelu_backward(upstream: Array, into: dict[str, Array], *, empty: Empty, x: Array) -> None:
    """∂L/∂x = upstream ½ (1 + t + x (1 − t²) u′), t = tanh u, u′ = √(2/π) (1 + 3 · 0.044715 x²)."""
    piecewise(gelu_gradient, x, upstream, into["x"], empty=empty, work=2)


def gelu_gradient(x: Array, upstream: Array, gradient: Array, t: Array, slope: Array) -> None:
    gelu_tanh(x, t)
    np.square(t, out=slope)
    np.subtract(1.0, slope, out=slope)
    slope *= x  # before u′, so that far from 0, where 1 − t² is 0, no product overflows
    x *= x
    x *= 3.0 * CUBIC * ROOT
    x += ROOT
    slope *= x
    slope += t
    slope += 1.0
    slope *= 0.5
    np.multiply(upstream, slope, out=gradient)


def gelu_tanh(x: Array, out: Array) -> None:
    u = np.square(x, out=out)
    u *= CUBIC
    u += 1.0
    u *= x
    u *= ROOT
    np.tanh(u, out=u)


def silu_forward(x: Array, *, out: Array, empty: Empty) -> None:
    """y = x σ(x), σ(x) = 1 / (1 + e⁻ˣ) = ½ (1 + tanh ½ x), of any shape.

    Elfwing, Uchibe and Doya, "Sigmoid-weighted linear units" (2018), section 2.

    >>> y = np.empty(2)
    >>> silu_forward(np.array([0.0, 99.0]), out=y, empty=np.empty)
    >>> y
    array([ 0., 99.])
    """
    piecewise(silu_of, x, out, empty=empty)


def silu_of(x: Array, y: Array) -> None:
    sigmoid_of(x, y)
    y *= x


def silu_backward(upstream: Array, into: dict[str, Array], *, empty: Empty, x: Array) -> None:
    """∂L/∂x = upstream σ (1 + x (1 − σ))."""
    piecewise(silu_gradient, x, upstream, into["x"], empty=empty, work=2)


def silu_gradient(x: Array, upstream: Array, gradient: Array, sigma: Array, slope: Array) -> None:
    sigmoid_of(x, sigma)
    np.subtract(1.0, sigma, out=slope)
    slope *= x
    slope += 1.0
    slope *= sigma
    np.multiply(upstream, slope, out=gradient)


def sigmoid_forward(x: Array, *, out: Array, empty: Empty) -> None:
    """y = 1 / (1 + e⁻ˣ) = ½ (1 + tanh ½ x), of any shape.

    >>> y = np.empty(2)
    >>> sigmoid_forward(np.array([0.0, 99.0]), out=y, empty=np.empty)
    >>> y
    array([0.5, 1. ])
    """
    piecewise(sigmoid_of, x, out, empty=empty)


def sigmoid_backward(upstream: Array, into: dict[str, Array], *, empty: Empty, y: Array) -> None:
    """∂L/∂x = upstream (1 − y) y."""
    piecewise(sigmoid_gradient, y, upstream, into["x"], empty=empty, work=1)


def sigmoid_gradient(y: Array, upstream: Array, gradient: Array, slope: Array) -> None:
    np.subtract(1.0, y, out=slope)
    slope *= y
    np.multiply(upstream, slope, out=gradient)


def sigmoid_of(x: Array, out: Array) -> None:
    np.multiply(x, 0.5, out=out)
    np.tanh(out, out=out)
    out += 1.0
    out *= 0.5


add = Operation(add_forward, None, two_alike, {}, over="other", passed={"x": itself, "other": itself})
multiply = Operation(
    multiply_forward, multiply_backward, two_alike, {"x": ("other",), "other": ("x",)}, over_upstream="other"
)
scale = Operation(scale_forward, scale_backward, same_shape, {"x": ()}, over="x", over_upstream="x")
relu = Operation(relu_forward, relu_backward, same_shape, {"x": ("y",)}, over="x", over_upstream="x")
tanh = Operation(tanh_forward, tanh_backward, same_shape, {"x": ("y",)}, over="x", over_upstream="x")
gelu = Operation(gelu_forward, gelu_backward, same_shape, {"x": ("x",)}, over_upstream="x", spoils=("x",))
sigmoid = Operation(sigmoid_forward, sigmoid_backward, same_shape, {"x": ("y",)}, over="x", over_upstream="x")
silu = Operation(silu_forward, silu_backward, same_shape, {"x": ("x",)}, over_upstream="x")

ACTIVATIONS = {"relu": relu, "tanh": tanh, "gelu": gelu}
