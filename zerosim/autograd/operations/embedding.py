"""Embeddings of tokens and of positions."""

import numpy as np

from zerosim.autograd.operation import Empty, Into, Operation, refuse
from zerosim.autograd.operations.shapes import rows
from zerosim.core.allocation import Array


def embedding_forward(tokens: Array, weight: Array, *, empty: Empty) -> Array:
    """y = weight[token]: (B, T, n) for tokens (B, T), integers from 0 to below the length of weight (V, n).

    >>> embedding_forward(np.array([[2, 0]]), np.array([[0.5], [1.5], [2.5]]), empty=np.empty).tolist()
    [[[2.5], [0.5]]]
    """
    if len(tokens.shape) != 2 or len(weight.shape) != 2:
        raise refuse("embedding", "tokens (B, T), weight (V, n)", tokens.shape, weight.shape)
    y = empty((*tokens.shape, weight.shape[1]), weight.dtype)
    return np.take(weight, tokens, axis=0, out=y, mode="clip")


def embedding_backward(upstream: Array, into: Into, *, empty: Empty, tokens: Array) -> None:
    """∂L/∂weight[i] = Σ upstream where the token is i, from the first place of the first sample to the last."""
    gradient = into["weight"]
    gradient[...] = 0.0
    np.add.at(gradient, tokens.ravel(), rows(upstream))


def positions_forward(x: Array, weight: Array, *, empty: Empty) -> Array:
    """y = x + weight[t] at place t: x (B, T, n), weight (at least T, n).

    >>> positions_forward(np.ones((1, 2, 1)), np.array([[0.5], [1.5], [2.5]]), empty=np.empty).tolist()
    [[[1.5], [2.5]]]
    """
    if len(x.shape) != 3 or len(weight) < x.shape[1] or x.shape[2:] != weight.shape[1:]:
        raise refuse("positions", "x (B, T, n), weight (at least T, n)", x.shape, weight.shape)
    return np.add(x, weight[: x.shape[1]], out=empty(x.shape, x.dtype))


def positions_backward(upstream: Array, into: Into, *, empty: Empty) -> None:
    """∂L/∂x = upstream;  ∂L/∂weight[t] = Σ upstream at place t, first sample to last."""
    into["x"] = upstream
    if "weight" in into:
        tokens, gradient = upstream.shape[1], into["weight"]
        np.sum(upstream, axis=0, out=gradient[:tokens])
        gradient[tokens:] = 0.0


embedding = Operation(embedding_forward, embedding_backward, {"weight": ("tokens",)}, moves=True)
positions = Operation(positions_forward, positions_backward, passes=("x",))
