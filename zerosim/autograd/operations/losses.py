"""Losses: the functions that training minimises, and their gradients with respect to the model's outputs.

A loss has one element. It is one micro-batch's part of the mean over all targets of the step that count: it is scaled
here, so no division follows the addition of gradients. The number of these targets is a fact of the step, not of a
micro-batch: the micro-batches of a step may have different numbers of them, and how a step is cut must not matter.
(PyTorch's trainers learned this late: Hugging Face's `num_items_in_batch`, transformers 4.46.)
"""

from collections.abc import Callable

import numpy as np

from zerosim.autograd.operation import Empty
from zerosim.autograd.tape_collectives import Direction, TapeGroup, laid_out
from zerosim.core.allocation import Array

UNCOUNTED = -1
"""The target of a position in a sequence that the loss does not count."""

VOCABULARY, SEQUENCE, BATCH = Direction("tensor"), Direction("context"), Direction("expert")
"""The groups of whole vocabularies, of whole sequences, and of whole micro-batches."""


def counted(targets: Array) -> int:
    """The targets that a loss counts: integers other than −1, and all floats.

    >>> counted(np.array([[3, UNCOUNTED], [UNCOUNTED, UNCOUNTED]])), counted(np.array([[0.5, -1.0]]))
    (1, 2)
    """
    return int(np.count_nonzero(targets != UNCOUNTED)) if targets.dtype.kind in "iu" else targets.size


def cross_entropy(
    outputs: Array, classes: Array, count: int, *, empty: Empty, vocabulary: TapeGroup = VOCABULARY,
    sequence: TapeGroup = SEQUENCE, batch: TapeGroup = BATCH,
) -> tuple[Array, Array]:
    """Σ (log Σⱼ exp yⱼ − y[class]) / n and ∂L/∂y = (softmax y − onehot class) / n.

    `outputs` is (samples, classes) or, for tokens, (samples, sequence, vocabulary); `classes` holds an integer for
    each row, or −1 for a row that does not count. `count`, or n, is the number of rows that count in the whole step,
    over all ranks, so the mean is the sum over all micro-batches.

    Each rank of `vocabulary` has its piece of y's last dimension, each rank of `sequence` its piece of the sequence,
    each rank of `batch` its piece of the samples, and all have the whole `classes`; the loss is that of all. Shoeybi
    et al., "Megatron-LM" (2019), section 3: instead of outputs, numbers for each row are sent. Here they are three in
    one all-gather: maximum, sum, and y[class].

    >>> cross_entropy(np.zeros((1, 4)), np.array([2]), 1, empty=np.empty)
    (array([1.38629436]), array([[ 0.25,  0.25, -0.75,  0.25]]))
    >>> cross_entropy(np.zeros((1, 2, 2)), np.array([[UNCOUNTED, 1]]), 1, empty=np.empty)[1]
    array([[[ 0. ,  0. ],
            [ 0.5, -0.5]]])
    """
    rows, width = outputs.reshape(-1, outputs.shape[-1]), outputs.shape[-1]
    pieces = [(axis, group) for axis, group in enumerate((batch, sequence)) if group.size > 1]
    for axis, group in pieces:
        classes = laid_out(classes, group.size, axis)[group.place]
    labels = classes.ravel()
    counts, labels = labels != UNCOUNTED, labels - vocabulary.place * width
    here = (labels >= 0) & (labels < width)
    upstream = empty(outputs.shape, outputs.dtype)
    flat = upstream.reshape(rows.shape)
    chosen = np.arange(len(rows)), np.where(here, labels, 0)
    top = rows.max(axis=1, keepdims=True)
    np.subtract(rows, top, out=flat)
    logits = flat[chosen]
    np.exp(flat, out=flat)
    totals = flat.sum(axis=1)
    if vocabulary.size > 1:
        totals, logits = over_pieces(flat, top, totals, logits, here, empty, vocabulary)
    loss = np.sum((np.log(totals) - logits)[counts], keepdims=True)
    flat /= totals[:, np.newaxis]
    flat[chosen] -= here
    flat *= 1.0 / count
    flat[~counts] = 0.0
    loss = loss * (1.0 / count)
    for _, group in pieces:
        group.all_reduce(loss)
    return loss, upstream


def over_pieces(
    flat: Array, top: Array, totals: Array, logits: Array, here: Array, empty: Empty, group: TapeGroup
) -> tuple[Array, Array]:
    """The sum of exp and the logit of the class of each row, over all pieces; rescales `flat` for the largest `top`.

    A row's class is `here` on one rank of the group. Pieces are added first to last.
    """
    figures = empty((group.size, 3, len(flat)), flat.dtype)
    np.copyto(logits, 0.0, where=~here)
    own = figures[group.place]
    own[0], own[1], own[2] = top[:, 0], totals, logits + top[:, 0] * here
    group.all_gather(figures.reshape(-1))
    tops, sums, theirs = figures[:, 0], figures[:, 1], figures[:, 2]
    largest = tops.max(axis=0)
    flat *= np.exp(top - largest[:, np.newaxis])
    return np.sum(sums * np.exp(tops - largest), axis=0), np.sum(theirs, axis=0) - largest


def mean_squared_error(
    outputs: Array, targets: Array, count: int, *, empty: Empty
) -> tuple[Array, Array]:
    """Σ (y − target)² / n and ∂L/∂y = 2 (y − target) / n.

    `outputs` and `targets` are (rows, outputs of each). `count`, or n, is the number of targets in the whole step, over
    all ranks, so the mean is the sum over all micro-batches. The loss has one element.

    >>> mean_squared_error(np.array([[1.0, 2.0]]), np.zeros((1, 2)), 2, empty=np.empty)
    (array([2.5]), array([[1., 2.]]))
    """
    upstream = empty(outputs.shape, outputs.dtype)
    np.subtract(outputs, targets, out=upstream)
    loss = np.sum(np.square(upstream).ravel(), keepdims=True)
    upstream *= 2.0 / count
    return loss * (1.0 / count), upstream


LOSSES: dict[str, Callable[..., tuple[Array, Array]]] = {
    "cross_entropy": cross_entropy,
    "mean_squared_error": mean_squared_error,
}
