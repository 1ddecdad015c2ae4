"""Scores of language models, and the bigram model for comparison."""

from collections.abc import Iterator

import numpy as np

from zerosim.allocation import Array
from zerosim.data.dataset import Dataset

BLOCK = 2**20


def bigram_loss(dataset: Dataset) -> float:
    """The mean loss of a bigram model on the test split, in nats per target.

    The probability of token b after a is (count of a, b + 1) / (count of a + V), with the counts of the training split
    and V tokens that occur (Laplace's add-one smoothing). Targets of −1 are not counted. `dataset` has tokens, an
    alphabet and a test split.

    >>> twos = np.array([[0, 1], [1, 0]])
    >>> round(bigram_loss(Dataset(twos, twos[:, ::-1], twos[:1], twos[:1, ::-1], 2, "ab")), 4)  # -log(3/4)
    0.2877
    """
    assert dataset.kind == "tokens"
    assert dataset.x_test is not None
    assert dataset.y_test is not None
    vocabulary = len(dataset.alphabet)
    before, after = counted(dataset.x_test, dataset.y_test)
    pairs, tested = np.unique(before * vocabulary + after, return_counts=True)

    of_pair, of_token = np.zeros(len(pairs), np.int64), np.zeros(vocabulary, np.int64)
    for a, b in blocks(dataset.x, dataset.y):
        of_token += np.bincount(a, minlength=vocabulary)
        found = a * vocabulary + b
        places = np.minimum(np.searchsorted(pairs, found), len(pairs) - 1)
        of_pair += np.bincount(places[pairs[places] == found], minlength=len(pairs))
    probabilities = (of_pair + 1) / (of_token[pairs // vocabulary] + vocabulary)
    return float(-(tested * np.log(probabilities)).sum() / tested.sum())


def blocks(x: Array, y: Array) -> Iterator[tuple[Array, Array]]:
    rows = max(1, BLOCK // x.shape[1])
    for start in range(0, len(x), rows):
        yield counted(x[start : start + rows], y[start : start + rows])


def counted(x: Array, y: Array) -> tuple[Array, Array]:
    """The targets other than −1, and the token before each, int64."""
    counts = y != -1
    return x[counts].astype(np.int64), y[counts].astype(np.int64)


def exact_share(predicted: Array, y: Array) -> float:
    """The share of samples in which all targets are predicted, 0 to 1.

    `predicted` and `y` are integers (samples, sequence). If each prediction was made from the right tokens before it,
    these are also the samples that a model completes without an error from its own most likely tokens: up to the first
    error both inputs are the same.

    >>> exact_share(np.array([[9, 1, 2], [9, 1, 3]]), np.array([[-1, 1, 2], [-1, 1, 2]]))
    0.5
    """
    assert predicted.shape == y.shape
    return float(np.mean(((predicted == y) | (y == -1)).all(axis=1)))
