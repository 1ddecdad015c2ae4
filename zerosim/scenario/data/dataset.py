"""A data set as arrays, the order of its samples in steps, and the share of sequences without an error.

The order is one permutation per epoch, one after the other. A step takes the next samples, across the end of an epoch
if necessary. No sample is dropped, and a batch may be larger than the data set.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
import numpy.typing as npt

from zerosim.core.allocation import Array
from zerosim.core.errors import UsageError
from zerosim.core.files import reason, regular

OTHER = "\N{REPLACEMENT CHARACTER}"
"""The character of a token without one."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples in rows, C-contiguous; x_test and y_test are both present or both None.

    `kind` is one of three:

        "labels"    x, x_test float32 (samples, inputs); y, y_test int64 (samples,), below `classes`
        "values"    x, x_test as above; y, y_test float32 (samples, outputs); `classes` is None
        "tokens"    x, y, x_test, y_test integers (samples, sequence): tokens below `classes`, the vocabulary.
                    y[i, t] is the target after x[i, : t + 1], or -1 for none. x and y are stored in few bytes, and
                    `batch` returns int64; x_test and y_test are int64.

    `alphabet` has the character of each token that occurs.

    >>> tokens = np.array([[0, 1], [1, 1]], np.uint8)
    >>> pairs = Dataset(tokens, tokens, None, None, classes=3, alphabet="ab")
    >>> pairs.kind, pairs.decode(pairs.x[0]), pairs.batch(np.array([1]))[0].dtype
    ('tokens', 'ab', dtype('int64'))
    """

    x: Array
    y: Array
    x_test: Array | None
    y_test: Array | None
    classes: int | None
    alphabet: str = ""
    answers: bool = False
    """Whether each sequence is a question and its only right answer."""

    @property
    def kind(self) -> Literal["labels", "values", "tokens"]:
        if self.x.dtype.kind in "iu":
            return "tokens"
        return "values" if self.classes is None else "labels"

    @property
    def inputs(self) -> int:
        """The number of features per sample, or of tokens per sequence."""
        return int(self.x.shape[1])

    @property
    def outputs(self) -> int:
        return self.classes or int(self.y.shape[1])

    @property
    def measure(self) -> Literal["accuracy", "exact sequences", "loss", "mean squared error"]:
        """The measure of the test split; for sequences with an answer, the share without an error."""
        match self.kind:
            case "labels":
                return "accuracy"
            case "values":
                return "mean squared error"
        return "exact sequences" if self.answers else "loss"

    @property
    def loss(self) -> Literal["cross_entropy", "mean_squared_error"]:
        return "cross_entropy" if self.classes else "mean_squared_error"

    def batch(self, samples: npt.NDArray[np.int64]) -> tuple[Array, Array]:
        """Copies of x and y for these training samples; tokens and labels are int64, all else float32."""
        x, y = self.x[samples], self.y[samples]
        return (x.astype(np.int64), y.astype(np.int64)) if self.kind == "tokens" else (x, y)

    def decode(self, tokens: Array) -> str:
        """The characters of `tokens`, line feeds and control characters included.

        A token without a character, because it stands for all rare characters or does not occur, is U+FFFD, the
        replacement character.
        """
        return "".join(self.alphabet[token] if token < len(self.alphabet) else OTHER for token in tokens.ravel())


def sample_order(samples: int, step: int, count: int, seed: int) -> npt.NDArray[np.int64]:
    """The samples of step `step`: `count` indices below `samples`, in order.

    Steps read one endless stream: a permutation of all samples for epoch 0, another one for epoch 1, …, each drawn by
    NumPy's default generator from (seed, epoch). A step may begin in one epoch and end in a later one.

    >>> sorted(sample_order(6, 0, 3, seed=7).tolist() + sample_order(6, 1, 3, seed=7).tolist())
    [0, 1, 2, 3, 4, 5]
    """
    epoch, start = divmod(step * count, samples)
    epochs = range(epoch, epoch + -(-(start + count) // samples))
    stream = [epoch_order(samples, seed, epoch) for epoch in epochs]
    return np.concatenate(stream)[start : start + count]


@lru_cache(maxsize=2)
def epoch_order(samples: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """The permutation of an epoch; kept, because all its steps read it."""
    order = np.random.default_rng([seed, epoch]).permutation(samples)
    order.flags.writeable = False
    return order


@contextmanager
def data_file(folder: Path, source: str, allowed: str) -> Iterator[BinaryIO]:
    """The file at path `source`, relative to `folder`, open for reading.

    Raises `UsageError`, also if reading fails; `allowed` names the possible sources in it.
    """
    if not source:
        raise UsageError(f"it is empty; it must be {allowed}")
    if "\0" in source:
        raise UsageError("a path cannot contain a NUL byte")
    try:
        with regular(folder / source) as stream:
            yield stream
    except OSError as error:
        raise UsageError(f"{reason(error)}; it must be {allowed}") from None


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
