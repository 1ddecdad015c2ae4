"""LayerNorm and RMSNorm: each row, the last dimension, is normalised by its mean and its size.

Means and variances are not kept. Backward computes them again from x, in a few passes over an array that it reads
in any case.
"""

from collections.abc import Callable

import numpy as np

from zerosim.autograd.operation import Empty, Into, Operation, refuse
from zerosim.autograd.operations.shapes import piecewise, rows
from zerosim.core.allocation import Array

EPSILON = 1e-5
"""The number that is usually added to the mean square, as in PyTorch's LayerNorm."""


def layer_norm_forward(
    x: Array, weight: Array, bias: Array, *, empty: Empty, epsilon: float = EPSILON
) -> Array:
    """y = x̂ · weight + bias, x̂ = (x − mean) / √(variance + ε), of each row; ε is `epsilon`.

    x is (…, n), weight and bias (n,). Ba, Kiros and Hinton, "Layer normalization" (2016), section 3.

    >>> layer_norm_forward(np.array([[3.0, 5.0]]), np.ones(2), np.zeros(2), empty=np.empty).round(4)
    array([[-1.,  1.]])
    """
    return normalized(standardized, x, weight, bias, empty, epsilon)


def layer_norm_backward(
    upstream: Array, into: Into, *, empty: Empty, x: Array | None = None, weight: Array | None = None,
    epsilon: float = EPSILON,
) -> None:
    """∂L/∂x = (g − mean g − x̂ · mean(g x̂)) / √(variance + ε), g = upstream · weight;  ∂L/∂weight = Σ upstream · x̂."""
    if "bias" in into:
        np.sum(rows(upstream), axis=0, out=into["bias"])
    if x is not None:
        normalized_gradients(standardized, upstream, into, x, weight, empty, epsilon)


def rms_norm_forward(x: Array, weight: Array, *, empty: Empty, epsilon: float = EPSILON) -> Array:
    """y = x̂ · weight, x̂ = x / √(mean x² + ε), of each row; ε is `epsilon`.

    x is (…, n), weight (n,). Zhang and Sennrich, "Root mean square layer normalization" (2019), section 3.

    >>> rms_norm_forward(np.array([[1.0, 7.0]]), np.ones(2), empty=np.empty).round(4)
    array([[0.2, 1.4]])
    """
    return normalized(scaled, x, weight, None, empty, epsilon)


def rms_norm_backward(
    upstream: Array, into: Into, *, empty: Empty, x: Array, weight: Array | None = None, epsilon: float = EPSILON
) -> None:
    """∂L/∂x = (g − x̂ · mean(g x̂)) / √(mean x² + ε), g = upstream · weight;  ∂L/∂weight = Σ upstream · x̂."""
    normalized_gradients(scaled, upstream, into, x, weight, empty, epsilon)


def standardized(x: Array, out: Array, work: Array, epsilon: float) -> Array:
    """Write x̂ into `out`; returns 1 / √(variance + ε) of each row."""
    np.subtract(x, np.mean(x, axis=-1, keepdims=True), out=out)
    return scaled(out, out, work, epsilon)


def scaled(x: Array, out: Array, work: Array, epsilon: float) -> Array:
    """Write x / √(mean x² + ε) into `out`; returns the reciprocal of that root for each row."""
    scale: Array = np.mean(np.square(x, out=work), axis=-1, keepdims=True)
    scale += epsilon
    np.sqrt(scale, out=scale)
    np.divide(1.0, scale, out=scale)
    np.multiply(x, scale, out=out)
    return scale


Normalize = Callable[[Array, Array, Array, float], Array]
"""`standardized` or `scaled`."""


def normalized(
    normalize: Normalize, x: Array, weight: Array, bias: Array | None, empty: Empty, epsilon: float
) -> Array:
    """x̂ · weight, plus bias. Raises `ZerosimError` unless weight and bias are as long as a row."""
    if not x.shape or weight.shape != x.shape[-1:] or (bias is not None and bias.shape != weight.shape):
        raise refuse("a norm", "x (…, n), weight (n,), bias (n,)", x.shape, weight.shape)

    def compute(x: Array, y: Array, work: Array) -> None:
        normalize(x, y, work, epsilon)
        y *= weight
        if bias is not None:
            y += bias

    piecewise(compute, x, y := empty(x.shape, x.dtype), empty=empty, work=1)
    return y


def normalized_gradients(
    normalize: Normalize, upstream: Array, into: Into, x: Array, weight: Array | None, empty: Empty, epsilon: float
) -> None:
    """Write the gradients of x and weight; `normalize` computes x̂ from x."""
    terms = empty(x.shape, x.dtype)

    def differentiate(x: Array, upstream: Array, term: Array, g: Array, x_hat: Array, work: Array) -> None:
        scale = normalize(x, x_hat, work, epsilon)
        np.multiply(upstream, x_hat, out=term)
        if weight is None:
            return
        np.multiply(upstream, weight, out=g)
        np.multiply(g, x_hat, out=work)
        x_hat *= np.mean(work, axis=-1, keepdims=True)
        if normalize is standardized:
            g -= np.mean(g, axis=-1, keepdims=True)
        g -= x_hat
        g *= scale

    gradient = terms if weight is None else into["x"]
    piecewise(differentiate, x, upstream, terms, gradient, empty=empty, work=2)
    if "weight" in into:
        np.sum(rows(terms), axis=0, out=into["weight"])


layer_norm = Operation(layer_norm_forward, layer_norm_backward, {"x": ("x", "weight"), "weight": ("x",), "bias": ()})
rms_norm = Operation(rms_norm_forward, rms_norm_backward, {"x": ("x", "weight"), "weight": ("x",)})
