"""Embeddings of tokens and of positions."""

import numpy as np

from zerosim.allocation import Array
from zerosim.autograd.operation import Empty, Operation, Shape
from zerosim.autograd.operations.shapes import itself, refuse, rows


def embedding_forward(tokens: Array, weight: Array, *, out: Array, empty: Empty) -> None:
    """y = weight[token]: (B, T, n) for tokens (B, T), integers from 0 to below the length of weight (V, n).

    >>> y = np.empty((1, 2, 1))
    >>> embedding_forward(np.array([[2, 0]]), np.array([[0.5], [1.5], [2.5]]), out=y, empty=np.empty)
    >>> y.tolist()
    [[[2.5], [0.5]]]
    """
    np.take(weight, tokens, axis=0, out=out, mode="clip")


def embedding_backward(upstream: Array, into: dict[str, Array], *, empty: Empty, tokens: Array) -> None:
    """∂L/∂weight[i] = Σ upstream where the token is i, from the first place of the first sample to the last."""
    into["weight"][...] = 0.0
    np.add.at(into["weight"], tokens.ravel(), rows(upstream))


def embedding_shape(tokens: Shape, weight: Shape) -> Shape:
    """The shape (B, T, n). Raises `ZerosimError` unless tokens are (B, T) and weight is (V, n)."""
    if len(tokens) != 2 or len(weight) != 2:
        raise refuse("embedding", "tokens (B, T), weight (V, n)", tokens, weight)
    return (*tokens, weight[1])


def positions_forward(x: Array, weight: Array, *, out: Array, empty: Empty) -> None:
    """y = x + weight[t] at place t: x (B, T, n), weight (at least T, n).

    >>> y = np.empty((1, 2, 1))
    >>> positions_forward(np.ones((1, 2, 1)), np.array([[0.5], [1.5], [2.5]]), out=y, empty=np.empty)
    >>> y.tolist()
    [[[1.5], [2.5]]]
    """
    np.add(x, weight[: x.shape[1]], out=out)


def positions_backward(upstream: Array, into: dict[str, Array], *, empty: Empty) -> None:
    """∂L/∂weight[t] = Σ upstream at place t, first sample to last."""
    if "weight" in into:
        tokens = upstream.shape[1]
        np.sum(upstream, axis=0, out=into["weight"][:tokens])
        into["weight"][tokens:] = 0.0


def positions_shape(x: Shape, weight: Shape) -> Shape:
    """The shape of x. Raises `ZerosimError` for more positions than rows of weight, or rows of a different length."""
    if len(x) != 3 or len(weight) != 2 or x[1] > weight[0] or x[2:] != weight[1:]:
        raise refuse("positions", "x (B, T, n), weight (at least T, n)", x, weight)
    return x


embedding = Operation(
    embedding_forward, embedding_backward, embedding_shape, {"weight": ("tokens",)}, moves=True
)
positions = Operation(
    positions_forward, positions_backward, positions_shape, {"weight": ()}, over="x", passed={"x": itself}
)
