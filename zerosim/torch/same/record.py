"""What two runs of one training must have in common, as a rank records it. PyTorch is not needed to read it.

A matrix W has two projections: W·v has a number for each row, vᵀ·W one for each column, with pseudo-random factors v
that depend only on the position within a row, or within a column. Rows of W have the numbers of these rows, whoever
holds them and in whatever order; columns those of these columns. Where ranks are known to hold blocks or ranges of one
tensor, their contributions to its projections add up. An output has a number for each token, a row of its last axis.
"""

from math import prod

import numpy as np

from zerosim.torch.check.record import Array, Key


def matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    """The rows and columns of a tensor as a matrix: the first axis, and all others.

    >>> matrix((4, 3, 2)), matrix((5,)), matrix(())
    ((4, 6), (5, 1), (1, 1))
    """
    return (shape[0], prod(shape[1:])) if shape else (1, 1)


def is_range(shape: tuple[int, ...], place: Key) -> bool:
    """Whether a part is a range of the flat tensor and no block of it."""
    return len(place) == 1 and len(shape) > 1


def span(shape: tuple[int, ...], place: Key) -> tuple[int, int, Array]:
    """The first row of a part, the row behind its last, and the positions of its columns in the whole matrix.

    >>> span((4, 3), ((1, 3), (0, 2)))
    (1, 3, array([0, 1]))
    >>> span((4, 3), ((2, 7),))
    (0, 3, array([0, 1, 2]))
    """
    rows, width = matrix(shape)
    if is_range(shape, place):
        (first, last), every = place[0], np.arange(width)
        return first // max(1, width), -(-last // max(1, width)), every
    if not place:
        return 0, rows, np.arange(width)
    columns = np.arange(width).reshape(shape[1:] or (1,))
    block = columns[tuple(slice(*bounds) for bounds in place[1:])] if len(shape) > 1 else columns
    return place[0][0], place[0][1], block.reshape(-1)
