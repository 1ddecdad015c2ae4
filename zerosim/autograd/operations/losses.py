"""Losses: the functions that training minimises, and their gradients with respect to the model's outputs.

A loss has one element. It is one micro-batch's part of the mean over the global batch: it is scaled here, so no
division follows the addition of gradients.
"""

from collections.abc import Callable

import numpy as np

from zerosim.allocation import Array
from zerosim.autograd.operation import Empty

UNCOUNTED = -1
"""The target of a position in a sequence that the loss does not count."""


def cross_entropy(
    outputs: Array, classes: Array, samples: int, *, empty: Empty
) -> tuple[Array, Array]:
    """Σ (log Σⱼ exp yⱼ − y[class]) / n and ∂L/∂y = (softmax y − onehot class) / n.

    `outputs` is (samples, classes) or, for tokens, (samples, sequence, vocabulary); `classes` holds an integer for
    each row, or −1 for a row that does not count, equally many in each sample. `samples` counts the whole global
    batch, and n is that times the counted rows of a sample, so the mean is the sum over all micro-batches.

    >>> cross_entropy(np.zeros((1, 4)), np.array([2]), 1, empty=np.empty)
    (array([1.38629436]), array([[ 0.25,  0.25, -0.75,  0.25]]))
    >>> cross_entropy(np.zeros((1, 2, 2)), np.array([[UNCOUNTED, 1]]), 1, empty=np.empty)[1]
    array([[[ 0. ,  0. ],
            [ 0.5, -0.5]]])
    """
    rows, labels = outputs.reshape(-1, outputs.shape[-1]), classes.ravel()
    counted = labels != UNCOUNTED
    count = samples * (int(counted.sum()) // len(outputs))
    upstream = empty(outputs.shape, outputs.dtype)
    flat = upstream.reshape(rows.shape)
    chosen = np.arange(len(rows)), labels
    np.subtract(rows, rows.max(axis=1, keepdims=True), out=flat)
    logits = flat[chosen]
    np.exp(flat, out=flat)
    totals = flat.sum(axis=1)
    loss = np.sum((np.log(totals) - logits)[counted], keepdims=True)
    flat /= totals[:, np.newaxis]
    flat[chosen] -= 1.0
    flat *= 1.0 / count
    flat[~counted] = 0.0
    return loss * (1.0 / count), upstream


def mean_squared_error(
    outputs: Array, targets: Array, samples: int, *, empty: Empty
) -> tuple[Array, Array]:
    """Σ (y − target)² / n and ∂L/∂y = 2 (y − target) / n, with n = samples × outputs of each.

    `outputs` and `targets` are (rows, outputs of each), and `samples` counts the whole global batch, so the mean is
    the sum over all micro-batches. The loss has one element.

    >>> mean_squared_error(np.array([[1.0, 2.0]]), np.zeros((1, 2)), 1, empty=np.empty)
    (array([2.5]), array([[1., 2.]]))
    """
    count = samples * outputs.shape[1]
    upstream = empty(outputs.shape, outputs.dtype)
    np.subtract(outputs, targets, out=upstream)
    loss = np.sum(np.square(upstream).ravel(), keepdims=True)
    upstream *= 2.0 / count
    return loss * (1.0 / count), upstream


LOSSES: dict[str, Callable[..., tuple[Array, Array]]] = {
    "cross_entropy": cross_entropy,
    "mean_squared_error": mean_squared_error,
}
