"""Matrix products: with weights, and of stacks of matrices."""

import numpy as np

from zerosim.allocation import Array
from zerosim.autograd.operation import Empty, Operation, Shape
from zerosim.autograd.operations.shapes import elements, itself, refuse, rows


def linear_forward(x: Array, weight: Array, bias: Array | None = None, *, out: Array, empty: Empty) -> None:
    """y = x Wᵀ + b, for W of shape (outputs, inputs) as in PyTorch's Linear; x is (…, inputs), y (…, outputs).

    >>> y = np.empty((1, 1))
    >>> linear_forward(np.ones((1, 2)), np.array([[1.0, 2.0]]), np.array([0.5]), out=y, empty=np.empty)
    >>> y
    array([[3.5]])
    """
    np.matmul(rows(x), weight.T, out=rows(out))
    if bias is not None:
        out += bias


def linear_backward(
    upstream: Array, into: dict[str, Array], *, empty: Empty, x: Array | None = None, weight: Array | None = None
) -> None:
    """∂L/∂W = upstreamᵀ x;  ∂L/∂b = Σ upstream, first row to last;  ∂L/∂x = upstream W."""
    if "weight" in into:
        np.matmul(rows(upstream).T, rows(x), out=into["weight"])
    if "bias" in into:
        np.sum(rows(upstream), axis=0, out=into["bias"])
    if "x" in into:
        assert weight is not None
        np.matmul(rows(upstream), weight, out=rows(into["x"]))


def linear_shape(x: Shape, weight: Shape, bias: Shape | None = None) -> Shape:
    """The shape (…, outputs). Raises `ZerosimError` unless x, weight and bias agree on inputs and outputs."""
    if not x or len(weight) != 2 or x[-1] != weight[1] or bias not in (None, weight[:1]):
        raise refuse("linear", "x (…, inputs), weight (outputs, inputs), bias (outputs,)", x, weight, bias)
    return (*x[:-1], weight[0])


def affine_forward(x: Array, weight: Array, bias: Array | None = None, *, out: Array, empty: Empty) -> None:
    """y = x W + b, for W of shape (inputs, outputs) as GPT-2's Conv1D stores it; x is (…, inputs), y (…, outputs).

    >>> y = np.empty((1, 1))
    >>> affine_forward(np.ones((1, 2)), np.array([[1.0], [2.0]]), np.array([0.5]), out=y, empty=np.empty)
    >>> y
    array([[3.5]])
    """
    np.matmul(rows(x), weight, out=rows(out))
    if bias is not None:
        out += bias


def affine_backward(
    upstream: Array, into: dict[str, Array], *, empty: Empty, x: Array | None = None, weight: Array | None = None
) -> None:
    """∂L/∂W = xᵀ upstream;  ∂L/∂b = Σ upstream, first row to last;  ∂L/∂x = upstream Wᵀ."""
    if "weight" in into:
        assert x is not None
        np.matmul(rows(x).T, rows(upstream), out=into["weight"])
    if "bias" in into:
        np.sum(rows(upstream), axis=0, out=into["bias"])
    if "x" in into:
        assert weight is not None
        np.matmul(rows(upstream), weight.T, out=rows(into["x"]))


def affine_shape(x: Shape, weight: Shape, bias: Shape | None = None) -> Shape:
    """The shape (…, outputs). Raises `ZerosimError` unless x, weight and bias agree on inputs and outputs."""
    if not x or len(weight) != 2 or x[-1] != weight[0] or bias not in (None, weight[1:]):
        raise refuse("affine", "x (…, inputs), weight (inputs, outputs), bias (outputs,)", x, weight, bias)
    return (*x[:-1], weight[1])


def matmul_forward(x: Array, weight: Array, *, out: Array, empty: Empty) -> None:
    """y = x W of each matrix of two stacks: x (…, m, n), W (…, n, p), y (…, m, p), equally many. Nothing is broadcast.

    >>> y = np.empty((2, 1, 1))
    >>> matmul_forward(np.ones((2, 1, 2)), np.array([[[1.0], [2.0]], [[3.0], [4.0]]]), out=y, empty=np.empty)
    >>> y.tolist()
    [[[3.0]], [[7.0]]]
    """
    np.matmul(x, weight, out=out)


def matmul_backward(
    upstream: Array, into: dict[str, Array], *, empty: Empty, x: Array | None = None, weight: Array | None = None
) -> None:
    """∂L/∂x = upstream Wᵀ;  ∂L/∂W = xᵀ upstream, of each matrix."""
    if "x" in into:
        assert weight is not None
        np.matmul(upstream, each_transposed(weight), out=into["x"])
    if "weight" in into:
        assert x is not None
        np.matmul(each_transposed(x), upstream, out=into["weight"])


def each_transposed(matrices: Array) -> Array:
    """The transposes of a stack of matrices, as a view."""
    *stack, row, column = range(len(matrices.shape))
    return matrices.transpose(*stack, column, row)


def matmul_shape(x: Shape, weight: Shape) -> Shape:
    """The shape (…, m, p). Raises `ZerosimError` unless both are equal stacks of matrices that can be multiplied."""
    if len(x) < 2 or len(x) != len(weight) or x[:-2] != weight[:-2] or x[-1] != weight[-2]:
        raise refuse("matmul", "x (…, m, n), weight (…, n, p)", x, weight)
    return (*x[:-1], weight[-1])


def add_bias_forward(x: Array, bias: Array, *, out: Array, empty: Empty) -> None:
    """y = x + b, for b of the length of x's last dimension: the bias of a product that is a sum over ranks.

    >>> y = np.empty((1, 2))
    >>> add_bias_forward(np.ones((1, 2)), np.array([0.5, 1.0]), out=y, empty=np.empty)
    >>> y
    array([[1.5, 2. ]])
    """
    np.add(x, bias, out=out)


def add_bias_backward(upstream: Array, into: dict[str, Array], *, empty: Empty) -> None:
    """∂L/∂b = Σ upstream, first row to last."""
    np.sum(rows(upstream), axis=0, out=into["bias"])


def add_bias_shape(x: Shape, bias: Shape) -> Shape:
    """The shape of x. Raises `ZerosimError` unless the bias has the length of its last dimension."""
    if bias != x[-1:]:
        raise refuse("add_bias", "x (…, n), bias (n,)", x, bias)
    return x


def products(y: Shape, x: Shape, *_: Shape) -> int:
    """Multiplications of a matrix product: each number of y is a sum over the inputs."""
    return elements(y) * x[-1]


NEEDS = {"x": ("weight",), "weight": ("x",), "bias": ()}
ONCE = {"x": 1.0, "weight": 1.0}

linear = Operation(
    linear_forward, linear_backward, linear_shape, NEEDS, multiplications=products, backward_products=ONCE
)
affine = Operation(
    affine_forward, affine_backward, affine_shape, NEEDS, multiplications=products, backward_products=ONCE
)
matmul = Operation(
    matmul_forward, matmul_backward, matmul_shape, {"x": ("weight",), "weight": ("x",)}, multiplications=products,
    backward_products=ONCE,
)
add_bias = Operation(
    add_bias_forward, add_bias_backward, add_bias_shape, {"bias": ()}, over="x", passed={"x": itself})
