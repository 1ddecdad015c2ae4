"""Normalisation of each row of numbers, the last dimension, by its mean and its size."""

import numpy as np

from zerosim.allocation import Array
from zerosim.autograd.operation import Empty, Operation, Shape
from zerosim.autograd.operations.shapes import refuse, rows

EPSILON = 1e-5
"""Added to the mean square, as PyTorch's LayerNorm and Llama's RMSNorm do."""


def layer_norm_forward(x: Array, weight: Array, bias: Array, *, out: Array, empty: Empty) -> None:
    """y = x̂ · weight + bias, x̂ = (x − mean) / √(variance + ε), of each row.

    x is (…, n), weight and bias (n,). Ba, Kiros and Hinton, "Layer normalization" (2016), section 3.

    >>> y = np.empty((1, 2))
    >>> layer_norm_forward(np.array([[3.0, 5.0]]), np.ones(2), np.zeros(2), out=y, empty=np.empty)
    >>> y.round(4)
    array([[-1.,  1.]])
    """
    standardized(x, out, empty)
    out *= weight
    out += bias


def layer_norm_backward(
    upstream: Array, into: dict[str, Array], *, empty: Empty, x: Array | None = None, weight: Array | None = None
) -> None:
    """∂L/∂x = (g − mean g − x̂ · mean(g x̂)) / √(variance + ε), g = upstream · weight;  ∂L/∂weight = Σ upstream · x̂."""
    if "bias" in into:
        np.sum(rows(upstream), axis=0, out=into["bias"])
    if x is None:
        return
    x_hat = empty(x.shape, x.dtype)
    scale = standardized(x, x_hat, empty)
    normalized_gradients(upstream, into, x_hat, scale, weight, empty, centred=True)


def rms_norm_forward(x: Array, weight: Array, *, out: Array, empty: Empty) -> None:
    """y = x̂ · weight, x̂ = x / √(mean x² + ε), of each row.

    x is (…, n), weight (n,). Zhang and Sennrich, "Root mean square layer normalization" (2019), section 3.

    >>> y = np.empty((1, 2))
    >>> rms_norm_forward(np.array([[1.0, 7.0]]), np.ones(2), out=y, empty=np.empty)
    >>> y.round(4)
    array([[0.2, 1.4]])
    """
    scaled(x, out, empty)
    out *= weight


def rms_norm_backward(
    upstream: Array, into: dict[str, Array], *, empty: Empty, x: Array, weight: Array | None = None
) -> None:
    """∂L/∂x = (g − x̂ · mean(g x̂)) / √(mean x² + ε), g = upstream · weight;  ∂L/∂weight = Σ upstream · x̂."""
    x_hat = empty(x.shape, x.dtype)
    scale = scaled(x, x_hat, empty)
    normalized_gradients(upstream, into, x_hat, scale, weight, empty, centred=False)


def standardized(x: Array, out: Array, empty: Empty) -> Array:
    """x̂ into `out`; 1 / √(variance + ε) of each row."""
    np.subtract(x, np.mean(x, axis=-1, keepdims=True), out=out)
    return scaled(out, out, empty)


def scaled(x: Array, out: Array, empty: Empty) -> Array:
    """x / √(mean x² + ε) into `out`; the reciprocal of that root, of each row."""
    scale: Array = np.mean(np.square(x, out=empty(x.shape, x.dtype)), axis=-1, keepdims=True)
    scale += EPSILON
    np.sqrt(scale, out=scale)
    np.divide(1.0, scale, out=scale)
    np.multiply(x, scale, out=out)
    return scale


def normalized_gradients(
    upstream: Array, into: dict[str, Array], x_hat: Array, scale: Array, weight: Array | None, empty: Empty,
    *, centred: bool,
) -> None:
    """The gradients of x and weight; `centred` where the mean was subtracted."""
    work = empty(x_hat.shape, x_hat.dtype)
    if "weight" in into:
        np.multiply(upstream, x_hat, out=work)
        np.sum(rows(work), axis=0, out=into["weight"])
    if "x" not in into:
        return
    assert weight is not None
    g = np.multiply(upstream, weight, out=into["x"])
    np.multiply(g, x_hat, out=work)
    x_hat *= np.mean(work, axis=-1, keepdims=True)
    if centred:
        g -= np.mean(g, axis=-1, keepdims=True)
    g -= x_hat
    g *= scale


def normalized_shape(x: Shape, weight: Shape, bias: Shape | None = None) -> Shape:
    if not x or weight != x[-1:] or bias not in (None, weight):
        raise refuse("a norm", "x (…, n), weight (n,), bias (n,)", x, weight, bias)
    return x


layer_norm = Operation(
    layer_norm_forward, layer_norm_backward, normalized_shape,
    {"x": ("x", "weight"), "weight": ("x",), "bias": ()}, over_upstream="x",
)
rms_norm = Operation(
    rms_norm_forward, rms_norm_backward, normalized_shape,
    {"x": ("x", "weight"), "weight": ("x",)}, over_upstream="x",
)
