"""Matrix products: with weights, and of stacks of matrices."""

from math import prod

import numpy as np

from zerosim.autograd.operation import Empty, Into, Operation, Shape, refuse
from zerosim.autograd.operations.shapes import rows
from zerosim.core.allocation import Array


def linear_forward(x: Array, weight: Array, bias: Array | None = None, *, empty: Empty) -> Array:
    """y = x Wᵀ + b, for W of shape (outputs, inputs) as in PyTorch's Linear; x is (…, inputs), y (…, outputs).

    >>> linear_forward(np.ones((1, 2)), np.array([[1.0, 2.0]]), np.array([0.5]), empty=np.empty)
    array([[3.5]])
    """
    return product("linear", x, weight.T, bias, empty)


def linear_backward(
    upstream: Array, into: Into, *, empty: Empty, x: Array | None = None, weight: Array | None = None
) -> None:
    """∂L/∂W = upstreamᵀ x;  ∂L/∂b = Σ upstream, first row to last;  ∂L/∂x = upstream W."""
    if "weight" in into:
        np.matmul(rows(upstream).T, rows(x), out=into["weight"])
    if "bias" in into:
        np.sum(rows(upstream), axis=0, out=into["bias"])
    if "x" in into and weight is not None:
        np.matmul(rows(upstream), weight, out=rows(into["x"]))


def affine_forward(x: Array, weight: Array, bias: Array | None = None, *, empty: Empty) -> Array:
    """y = x W + b, for W of shape (inputs, outputs) as GPT-2's Conv1D stores it; x is (…, inputs), y (…, outputs).

    >>> affine_forward(np.ones((1, 2)), np.array([[1.0], [2.0]]), np.array([0.5]), empty=np.empty)
    array([[3.5]])
    """
    return product("affine", x, weight, bias, empty)


def affine_backward(
    upstream: Array, into: Into, *, empty: Empty, x: Array | None = None, weight: Array | None = None
) -> None:
    """∂L/∂W = xᵀ upstream;  ∂L/∂b = Σ upstream, first row to last;  ∂L/∂x = upstream Wᵀ."""
    if "weight" in into and x is not None:
        np.matmul(rows(x).T, rows(upstream), out=into["weight"])
    if "bias" in into:
        np.sum(rows(upstream), axis=0, out=into["bias"])
    if "x" in into and weight is not None:
        np.matmul(rows(upstream), weight.T, out=rows(into["x"]))


def product(operation: str, x: Array, matrix: Array, bias: Array | None, empty: Empty) -> Array:
    """x · matrix + bias. Raises `ZerosimError` unless they agree on inputs and outputs."""
    if len(matrix.shape) != 2 or x.shape[-1:] != matrix.shape[:1] or (
            bias is not None and bias.shape != matrix.shape[1:]):
        shapes = (x.shape, matrix.shape, None if bias is None else bias.shape)
        raise refuse(operation, "x (…, inputs), a weight of inputs and outputs, bias (outputs,)", *shapes)
    y = empty((*x.shape[:-1], matrix.shape[1]), x.dtype)
    np.matmul(rows(x), matrix, out=rows(y))
    if bias is not None:
        y += bias
    return y


def matmul_forward(x: Array, weight: Array, *, empty: Empty) -> Array:
    """y = x W of each matrix of two stacks: x (…, m, n), W (…, n, p), y (…, m, p), equally many. Nothing is broadcast.

    >>> matmul_forward(np.ones((2, 1, 2)), np.array([[[1.0], [2.0]], [[3.0], [4.0]]]), empty=np.empty).tolist()
    [[[3.0]], [[7.0]]]
    """
    if len(x.shape) < 2 or x.shape[:-2] != weight.shape[:-2] or x.shape[-1:] != weight.shape[-2:-1]:
        raise refuse("matmul", "x (…, m, n), weight (…, n, p)", x.shape, weight.shape)
    return np.matmul(x, weight, out=empty((*x.shape[:-1], weight.shape[-1]), x.dtype))


def matmul_backward(
    upstream: Array, into: Into, *, empty: Empty, x: Array | None = None, weight: Array | None = None
) -> None:
    """∂L/∂x = upstream Wᵀ;  ∂L/∂W = xᵀ upstream, of each matrix."""
    if "x" in into and weight is not None:
        np.matmul(upstream, transposed(weight), out=into["x"])
    if "weight" in into and x is not None:
        np.matmul(transposed(x), upstream, out=into["weight"])


def transposed(matrices: Array) -> Array:
    """The transposes of a stack of matrices, as a view."""
    *stack, row, column = range(len(matrices.shape))
    return matrices.transpose(*stack, column, row)


def add_bias_forward(x: Array, bias: Array, *, empty: Empty) -> Array:
    """y = x + b, for b of the length of x's last dimension: the bias of a product that is a sum over ranks.

    >>> add_bias_forward(np.ones((1, 2)), np.array([0.5, 1.0]), empty=np.empty)
    array([[1.5, 2. ]])
    """
    if bias.shape != x.shape[-1:]:
        raise refuse("add_bias", "x (…, n), bias (n,)", x.shape, bias.shape)
    return np.add(x, bias, out=empty(x.shape, x.dtype))


def add_bias_backward(upstream: Array, into: Into, *, empty: Empty) -> None:
    """∂L/∂x = upstream;  ∂L/∂b = Σ upstream, first row to last."""
    into["x"] = upstream
    if "bias" in into:
        np.sum(rows(upstream), axis=0, out=into["bias"])


def products(y: Shape, x: Shape, *_: Shape) -> int:
    """Multiplications of a matrix product: each number of y is a sum over the inputs."""
    return prod(y) * x[-1]


NEEDS = {"x": ("weight",), "weight": ("x",), "bias": ()}
ONCE = {"x": 1.0, "weight": 1.0}

linear = Operation(linear_forward, linear_backward, NEEDS, multiplications=products, backward_products=ONCE)
affine = Operation(affine_forward, affine_backward, NEEDS, multiplications=products, backward_products=ONCE)
matmul = Operation(
    matmul_forward, matmul_backward, {"x": ("weight",), "weight": ("x",)}, multiplications=products,
    backward_products=ONCE)
add_bias = Operation(add_bias_forward, add_bias_backward, passes=("x",))
