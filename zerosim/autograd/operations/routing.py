"""Routing: the largest numbers of a row and their positions, rows by number, and queues of limited length.

    indices    integers, int64; −1 stands for no position in the operations that say so
    n, d       rows, and the numbers of each

A mixture of experts consists of these: `top_k` of a router's probabilities, `queue_slots` for the places in each
expert's queue, `scatter_rows` into the queues, a `matmul` for each expert, `gather_rows` out of them. Shapes depend on
a capacity and never on how many samples choose an expert, so a plan knows them.

Indices are values of a graph like any other, kept for backward if it reads them, 8 bytes each. They have no gradient:
the derivative of the choice is 0 almost everywhere. A router learns by its probabilities alone.
"""

import numpy as np

from zerosim.autograd.operation import Empty, Into, Operation, Value, refuse
from zerosim.autograd.operations.shapes import rows
from zerosim.core.allocation import Array


def top_indices_forward(x: Array, *, empty: Empty, count: int) -> Array:
    """y = the places of the `count` largest numbers of each row, largest first, equal ones by place.

    x is (…, n), y (…, count). −0 and 0 are equal; NaN comes after all numbers.

    >>> top_indices_forward(np.array([[0.5, 2.0, 0.5, 2.0]]), empty=np.empty, count=3)
    array([[1, 3, 0]])
    """
    if not x.shape or not 1 <= count <= x.shape[-1]:
        raise refuse("top_k", f"x (…, n) with n at least {count}, and a count of at least 1", x.shape)
    order = np.argsort(np.negative(x, out=empty(x.shape, x.dtype)), axis=-1, kind="stable")
    y = empty((*x.shape[:-1], count), np.int64)
    y[...] = order[..., :count]
    return y


def take_along_forward(x: Array, indices: Array, *, empty: Empty) -> Array:
    """y[…, j] = x[…, indices[…, j]]: x (…, n), indices (…, k) from 0 to below n, y (…, k).

    >>> take_along_forward(np.array([[0.5, 1.5, 2.5]]), np.array([[2, 0]]), empty=np.empty)
    array([[2.5, 0.5]])
    """
    if not x.shape or len(x.shape) != len(indices.shape) or x.shape[:-1] != indices.shape[:-1]:
        raise refuse("take_along", "x (…, n), indices (…, k)", x.shape, indices.shape)
    y = empty(indices.shape, x.dtype)
    y[...] = np.take_along_axis(x, indices, axis=-1)
    return y


def take_along_backward(upstream: Array, into: Into, *, empty: Empty, indices: Array) -> None:
    """∂L/∂x[…, i] = Σ upstream where the index is i, first to last."""
    gradient, places = rows(into["x"]), rows(indices)
    gradient[...] = 0.0
    np.add.at(gradient, (np.arange(len(places))[:, np.newaxis], places), rows(upstream))


def one_hot_forward(indices: Array, *, empty: Empty, count: int) -> Array:
    """y[…, j] = 1 where the index is j, otherwise 0; all 0 where it is −1. Indices (…), y (…, count).

    >>> one_hot_forward(np.array([2, -1]), empty=np.empty, count=3).tolist()
    [[False, False, True], [False, False, False]]
    """
    return np.equal(indices[..., np.newaxis], np.arange(count), out=empty((*indices.shape, count), np.bool_))


def gather_rows_forward(x: Array, indices: Array, *, empty: Empty) -> Array:
    """y = x[index], row by row; a row of zeros where the index is −1. x is (n, d), indices (…), y (…, d).

    >>> gather_rows_forward(np.array([[0.5], [1.5]]), np.array([1, -1, 1]), empty=np.empty).tolist()
    [[1.5], [0.0], [1.5]]
    """
    if len(x.shape) != 2 or not indices.shape:
        raise refuse("gather_rows", "x (n, d), indices (…)", x.shape, indices.shape)
    gather(x, indices, y := empty((*indices.shape, x.shape[1]), x.dtype))
    return y


def gather_rows_backward(upstream: Array, into: Into, *, empty: Empty, indices: Array) -> None:
    """∂L/∂x[i] = Σ upstream where the index is i, first to last, beginning with 0."""
    scatter(rows(upstream), indices.reshape(-1), into["x"], empty)


def scatter_rows_forward(x: Array, indices: Array, *, empty: Empty, count: int) -> Array:
    """y[i] = Σ of the rows of x that have i among their indices, first row to last, beginning with 0.

    x is (n, d), indices (n, k): each row goes to k places, or to fewer where an index is −1. y is (count, d).

    >>> scatter_rows_forward(np.array([[1.0], [2.0]]), np.array([[0, 2], [2, -1]]), empty=np.empty, count=3).tolist()
    [[1.0], [0.0], [3.0]]
    """
    if len(x.shape) != 2 or len(indices.shape) != 2 or len(indices) != len(x) or not indices.shape[1]:
        raise refuse("scatter_rows", "x (n, d), indices (n, k)", x.shape, indices.shape)
    scatter(x[:, np.newaxis], indices, y := empty((count, x.shape[1]), x.dtype), empty)
    return y


def scatter_rows_backward(upstream: Array, into: Into, *, empty: Empty, indices: Array, count: int) -> None:
    """∂L/∂x[s] = Σ upstream[indices[s, j]], j first to last; nothing where the index is −1."""
    gradient = into["x"]
    work = empty(gradient.shape, gradient.dtype)
    gather(upstream, indices[:, 0], gradient)
    for place in range(1, indices.shape[1]):
        gather(upstream, indices[:, place], work)
        gradient += work


def queue_slots_forward(
    choices: Array, *, empty: Empty, queues: int, capacity: int, sequences: int = 1
) -> Array:
    """y = queue · capacity + place in it, −1 where the queue is full: choices (n, k) of `queues`, y (n, k).

    With `sequences`, the rows are so many equal runs, each with queues of its own, one after the other in a queue: y is
    (queue · sequences + run) · capacity + place.

    Places are given to first choices, first row to last, then to second choices, and so on. Lepikhin et al., "GShard"
    (2020), algorithm 1; Fedus, Zoph and Shazeer, "Switch transformers" (2021), section 2.2.

    >>> queue_slots_forward(np.array([[0, 1], [0, 1], [1, 0]]), empty=np.empty, queues=2, capacity=2).tolist()
    [[0, 3], [1, -1], [2, -1]]
    """
    if len(choices.shape) != 2 or min(queues, capacity, sequences) < 1 or len(choices) % sequences:
        raise refuse("queue_slots", f"choices (n, k), queues and capacity of at least 1, not {queues}, {capacity}, and "
                     f"n a multiple of {sequences} sequences,", choices.shape)
    out = empty(choices.shape, np.int64)
    out[...] = -1
    shape = sequences, len(choices) // sequences, choices.shape[1]
    by_choice, slots = (x.reshape(shape).transpose(0, 2, 1) for x in (choices, out))
    runs = np.arange(sequences)[:, np.newaxis, np.newaxis]
    for queue in range(queues):
        chosen = by_choice == queue
        place = np.cumsum(chosen.reshape(sequences, -1), axis=1).reshape(chosen.shape)
        before = (queue * sequences + runs) * capacity - 1
        np.copyto(slots, place + before, where=chosen & (place <= capacity))
    return out


def gather(x: Array, indices: Array, out: Array) -> None:
    """Rows of x by their numbers; zeros for the number −1."""
    np.take(x, indices, axis=0, out=out, mode="clip")
    np.copyto(out, 0.0, where=(indices < 0)[..., np.newaxis])


def scatter(x: Array, indices: Array, out: Array, empty: Empty) -> None:
    """Add rows of x, first to last, to the rows of `out`, which are 0 before; rows with number −1 are dropped."""
    with_dropped = empty((out.shape[0] + 1, out.shape[1]), out.dtype)
    with_dropped[...] = 0.0
    np.add.at(with_dropped, indices, x)
    out[...] = with_dropped[: out.shape[0]]


BY_INDEX = {"x": ("indices",)}

top_indices = Operation(top_indices_forward, moves=True)
take_along = Operation(take_along_forward, take_along_backward, BY_INDEX, moves=True)
one_hot = Operation(one_hot_forward, moves=True)
gather_rows = Operation(gather_rows_forward, gather_rows_backward, BY_INDEX, moves=True)
scatter_rows = Operation(scatter_rows_forward, scatter_rows_backward, BY_INDEX)
queue_slots = Operation(queue_slots_forward, moves=True)


def top_k(x: Value, count: int) -> tuple[Value, Value]:
    """The `count` largest numbers of each row, largest first, and their places: `take_along` of `top_indices`.

    >>> from zerosim.autograd.graph import Graph
    >>> values, indices = top_k(Graph((4, 8)).input, 2)
    >>> values.shape, indices.shape
    ((4, 2), (4, 2))
    """
    indices = top_indices(x, count=count)
    return take_along(x, indices), indices
