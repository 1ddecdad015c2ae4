"""Elementwise operations: sums, products and activations."""

import math

import numpy as np

from zerosim.autograd.operation import Empty, Into, Operation
from zerosim.autograd.operations.shapes import NOTHING, like, piecewise, refuse
from zerosim.core.allocation import Array


def add_forward(x: Array, other: Array, *, empty: Empty) -> Array:
    """y = x + other, both of one shape.

    >>> add_forward(np.array([1.0, 2.0]), np.array([3.0, 4.0]), empty=np.empty)
    array([4., 6.])
    """
    check_alike(x, other)
    return np.add(x, other, out=like(x, empty))


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
    return np.multiply(x, other, out=like(x, empty))


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
    return np.multiply(x, factor, out=like(x, empty))


def scale_backward(upstream: Array, into: Into, *, empty: Empty, factor: float) -> None:
    """∂L/∂x = factor · upstream."""
    np.multiply(upstream, factor, out=into["x"])


def relu_forward(x: Array, *, empty: Empty) -> Array:
    """y = max(x, 0), of any shape.

    >>> relu_forward(np.array([-1.0, 2.0]), empty=np.empty)
    array([0., 2.])
    """
    return np.maximum(x, 0.0, out=like(x, empty))


def relu_backward(upstream: Array, into: Into, *, empty: Empty, y: Array) -> None:
    """∂L/∂x = upstream · (1 where y > 0, otherwise 0)."""
    np.multiply(upstream, y > 0.0, out=into["x"])


def tanh_forward(x: Array, *, empty: Empty) -> Array:
    """y = tanh x, of any shape.

    >>> tanh_forward(np.array([0.0, 100.0]), empty=np.empty)
    array([0., 1.])
    """
    return np.tanh(x, out=like(x, empty))


def tanh_backward(upstream: Array, into: Into, *, empty: Empty, y: Array) -> None:
    """∂L/∂x = upstream (1 − y²)."""
    piecewise(tanh_gradient, y, upstream, into["x"], empty=empty, work=1)


def tanh_gradient(y: Array, upstream: Array, gradient: Array, slope: Array) -> None:
    np.square(y, out=slope)
    np.subtract(1.0, slope, out=slope)
    np.multiply(upstream, slope, out=gradient)


ROOT = math.sqrt(2.0 / math.pi)
CUBIC = 0.044715


def gelu_forward(x: Array, *, empty: Empty) -> Array:
    """y = ½ x (1 + tanh u) with u = √(2/π) (x + 0.044715 x³), of any shape.

    The tanh form of Hendrycks and Gimpel, "Gaussian error linear units" (2016), section 2.

    >>> gelu_forward(np.array([-9.0, 0.0, 9.0]), empty=np.empty) + 0.0
    array([0., 0., 9.])
    """
    piecewise(gelu_of, x, y := like(x, empty), empty=empty)
    return y


def gelu_of(x: Array, y: Array) -> None:
    gelu_tanh(x, y)
    y += 1.0
    y *= x
    y *= 0.5


def gelu_backward(upstream: Array, into: Into, *, empty: Empty, x: Array) -> None:
    """∂L/∂x = upstream ½ (1 + t + x (1 − t²) u′), t = tanh u, u′ = √(2/π) (1 + 3 · 0.044715 x²)."""
    piecewise(gelu_gradient, x, upstream, into["x"], empty=empty, work=2)


def gelu_gradient(x: Array, upstream: Array, gradient: Array, t: Array, slope: Array) -> None:
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


def gelu_tanh(x: Array, out: Array) -> None:
    u = np.square(x, out=out)
    u *= CUBIC
    u += 1.0
    u *= x
    u *= ROOT
    np.tanh(u, out=u)


def silu_forward(x: Array, *, empty: Empty) -> Array:
    """y = x σ(x), σ(x) = 1 / (1 + e⁻ˣ) = ½ (1 + tanh ½ x), of any shape.

    Elfwing, Uchibe and Doya, "Sigmoid-weighted linear units" (2018), section 2.

    >>> silu_forward(np.array([0.0, 99.0]), empty=np.empty)
    array([ 0., 99.])
    """
    piecewise(silu_of, x, y := like(x, empty), empty=empty)
    return y


def silu_of(x: Array, y: Array) -> None:
    sigmoid_of(x, y)
    y *= x


def silu_backward(upstream: Array, into: Into, *, empty: Empty, x: Array) -> None:
    """∂L/∂x = upstream σ (1 + x (1 − σ))."""
    piecewise(silu_gradient, x, upstream, into["x"], empty=empty, work=2)


def silu_gradient(x: Array, upstream: Array, gradient: Array, sigma: Array, slope: Array) -> None:
    sigmoid_of(x, sigma)
    np.subtract(1.0, sigma, out=slope)
    slope *= x
    slope += 1.0
    slope *= sigma
    np.multiply(upstream, slope, out=gradient)


def sigmoid_forward(x: Array, *, empty: Empty) -> Array:
    """y = 1 / (1 + e⁻ˣ) = ½ (1 + tanh ½ x), of any shape.

    >>> sigmoid_forward(np.array([0.0, 99.0]), empty=np.empty)
    array([0.5, 1. ])
    """
    piecewise(sigmoid_of, x, y := like(x, empty), empty=empty)
    return y


def sigmoid_backward(upstream: Array, into: Into, *, empty: Empty, y: Array) -> None:
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


OF_X, OF_Y = {"x": ("x",)}, {"x": ("y",)}

add = Operation(add_forward, add_backward, {"x": (), "other": ()}, passes=("x", "other"))
multiply = Operation(multiply_forward, multiply_backward, {"x": ("other",), "other": ("x",)})
scale = Operation(scale_forward, scale_backward, NOTHING)
relu = Operation(relu_forward, relu_backward, OF_Y)
tanh = Operation(tanh_forward, tanh_backward, OF_Y)
gelu = Operation(gelu_forward, gelu_backward, OF_X)
sigmoid = Operation(sigmoid_forward, sigmoid_backward, OF_Y)
silu = Operation(silu_forward, silu_backward, OF_X)

ACTIVATIONS = {"relu": relu, "tanh": tanh, "gelu": gelu}
