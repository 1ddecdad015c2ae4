"""What a tape can run: plain functions, forward and backward, for each operation and each loss.

    x, y       input and output of an operation, one sample in each row
    L          the loss
    upstream   ∂L/∂y on the way in, ∂L/∂x on the way out
    kept       the one array that backward needs of forward
    empty      where new arrays come from, called like `np.empty`

Laws, which let memory be used again:

    an activation may write y over x, and ∂L/∂x over ∂L/∂y and over `kept`
    `linear` writes over nothing that it is given
    every array has the dtype of x; scalars are Python floats, which leave it alone
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from zerosim.allocation import Array


class Empty(Protocol):
    """Hands out an array whose contents are not defined."""

    def __call__(self, shape: tuple[int, ...], dtype: npt.DTypeLike, /) -> Array: ...


def linear(x: Array, weight: Array, bias: Array, *, empty: Empty) -> tuple[Array, Array]:
    """y = x Wᵀ + b, for W of shape (outputs, inputs) as in PyTorch's Linear; keeps x.

    >>> linear(np.ones((1, 2)), np.array([[1.0, 2.0]]), np.array([0.5]), empty=np.empty)[0]
    array([[3.5]])
    """
    y = empty((len(x), len(weight)), x.dtype)
    np.matmul(x, weight.T, out=y)
    y += bias
    return y, x


def linear_gradients(upstream: Array, x: Array, weight: Array, bias: Array) -> None:
    """∂L/∂W = upstreamᵀ x into `weight`; ∂L/∂b = Σ upstream, first sample to last, into `bias`."""
    np.matmul(upstream.T, x, out=weight)
    np.sum(upstream, axis=0, out=bias)


def linear_backward(
    upstream: Array, x: Array, weight: Array, bias: Array, *, empty: Empty
) -> Array:
    """∂L/∂x = upstream W."""
    return np.matmul(upstream, weight, out=empty(x.shape, x.dtype))


def relu(x: Array, *, empty: Empty) -> tuple[Array, Array]:
    """y = max(x, 0); keeps y."""
    return np.maximum(x, 0.0, out=x), x


def relu_backward(upstream: Array, y: Array, *, empty: Empty) -> Array:
    """∂L/∂x = upstream · (1 where y > 0, otherwise 0)."""
    return np.multiply(upstream, y > 0.0, out=upstream)


def tanh(x: Array, *, empty: Empty) -> tuple[Array, Array]:
    """y = tanh x; keeps y."""
    return np.tanh(x, out=x), x


def tanh_backward(upstream: Array, y: Array, *, empty: Empty) -> Array:
    """∂L/∂x = upstream (1 − y²)."""
    slope = np.subtract(1.0, np.square(y, out=y), out=y)
    return np.multiply(upstream, slope, out=upstream)


ROOT = math.sqrt(2.0 / math.pi)
CUBIC = 0.044715


def gelu(x: Array, *, empty: Empty) -> tuple[Array, Array]:
    """y = ½ x (1 + tanh u) with u = √(2/π) (x + 0.044715 x³); keeps x.

    The tanh form of Hendrycks and Gimpel, "Gaussian error linear units" (2016), section 2.
    """
    y = _gelu_tanh(x, empty)
    y += 1.0
    y *= x
    y *= 0.5
    return y, x


def gelu_backward(upstream: Array, x: Array, *, empty: Empty) -> Array:
    """∂L/∂x = upstream ½ (1 + t + x (1 − t²) u′), t = tanh u, u′ = √(2/π) (1 + 3 · 0.044715 x²)."""
    t = _gelu_tanh(x, empty)
    slope = np.square(t, out=empty(x.shape, x.dtype))
    np.subtract(1.0, slope, out=slope)
    slope *= x  # before u′, so that far from 0, where 1 − t² is 0, no product overflows
    x *= x
    x *= 3.0 * CUBIC * ROOT
    x += ROOT
    slope *= x
    slope += t
    slope += 1.0
    slope *= 0.5
    return np.multiply(upstream, slope, out=upstream)


def _gelu_tanh(x: Array, empty: Empty) -> Array:
    u = np.square(x, out=empty(x.shape, x.dtype))
    u *= CUBIC
    u += 1.0
    u *= x
    u *= ROOT
    return np.tanh(u, out=u)


def cross_entropy(
    outputs: Array, classes: Array, samples: int, *, empty: Empty
) -> tuple[Array, Array]:
    """Σ (log Σⱼ exp yⱼ − y[class]) / samples and ∂L/∂y = (softmax y − onehot class) / samples.

    `outputs` is (rows, classes), `classes` holds one integer for each row, and `samples` counts
    the whole global batch, whose mean is the sum of what its parts give. The loss has one element.

    >>> cross_entropy(np.zeros((1, 4)), np.array([2]), 1, empty=np.empty)
    (array([1.38629436]), array([[ 0.25,  0.25, -0.75,  0.25]]))
    """
    chosen = np.arange(len(outputs)), classes
    upstream = empty(outputs.shape, outputs.dtype)
    np.subtract(outputs, outputs.max(axis=1, keepdims=True), out=upstream)
    logits = upstream[chosen]
    np.exp(upstream, out=upstream)
    totals = upstream.sum(axis=1)
    loss = np.sum(np.log(totals) - logits, keepdims=True)
    upstream /= totals[:, np.newaxis]
    upstream[chosen] -= 1.0
    upstream *= 1.0 / samples
    return loss * (1.0 / samples), upstream


def mean_squared_error(
    outputs: Array, targets: Array, samples: int, *, empty: Empty
) -> tuple[Array, Array]:
    """Σ (y − target)² / n and ∂L/∂y = 2 (y − target) / n, with n = samples × outputs of each.

    `outputs` and `targets` are (rows, outputs of each), and `samples` counts the whole global
    batch, whose mean is the sum of what its parts give. The loss has one element.

    >>> mean_squared_error(np.array([[1.0, 2.0]]), np.zeros((1, 2)), 1, empty=np.empty)
    (array([2.5]), array([[1., 2.]]))
    """
    count = samples * outputs.shape[1]
    upstream = empty(outputs.shape, outputs.dtype)
    np.subtract(outputs, targets, out=upstream)
    loss = np.sum(np.square(upstream).ravel(), keepdims=True)
    upstream *= 2.0 / count
    return loss * (1.0 / count), upstream


@dataclass(frozen=True)
class Operation:
    """`forward(x, *parameters, empty)` gives y and what to keep; `backward(upstream, kept,
    *parameters, empty)` gives ∂L/∂x; `gradients(upstream, kept, *into)`, called before backward,
    writes ∂L/∂p for each p of `parameters`, which are named as a layer's state names them.
    """

    forward: Callable[..., tuple[Array, Array]]
    backward: Callable[..., Array]
    parameters: tuple[str, ...] = ()
    gradients: Callable[..., None] | None = None
    keeps_x: bool = False
    """Whether x is what it keeps, which then lives beside y until backward."""


LINEAR = Operation(linear, linear_backward, ("weight", "bias"), linear_gradients, keeps_x=True)

ACTIVATIONS = {
    "relu": Operation(relu, relu_backward),
    "tanh": Operation(tanh, tanh_backward),
    "gelu": Operation(gelu, gelu_backward, keeps_x=True),
}

LOSSES: dict[str, Callable[..., tuple[Array, Array]]] = {
    "cross_entropy": cross_entropy,
    "mean_squared_error": mean_squared_error,
}
