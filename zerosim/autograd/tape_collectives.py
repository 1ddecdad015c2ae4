"""Collectives on the tape, over ranks that share one micro-batch: the transpose of each is a collective.

    operation          forward                             backward           Megatron-LM's name
    copy_to            y = x                               all-reduce         f, copy_to_…_region
    reduce_from        all-reduce                          passes ∂L/∂y on    g, reduce_from_…_region
    gather_from        all-gather along `axis`             reduce-scatter     gather_from_sequence_…
    scatter_sum_to     reduce-scatter along `axis`         all-gather         reduce_scatter_to_sequence_…
    scatter_to         this rank's piece along `axis`      all-gather         scatter_to_…_region
    join_from          all-gather along `axis`             this rank's piece  gather_from_…_region
    all_to_all         block r to rank r                   all-to-all
    shift              x of the rank `by` places before    shift back

`gather_from` is for pieces that the ranks then use differently: their gradients are parts of a sum. `join_from` is for
pieces from which all ranks compute the same: each has the whole gradient. Weights that all ranks have and use on
different numbers, such as those of a norm on pieces of a sequence, go through `copy_to`.

A model names a `Direction` of the mesh; `over` gives each operation the group of its direction. Forward and backward
fill memory with this rank's part, and the group adds or moves it in place. A direction is itself a group that does
nothing, so shapes need no other code. Arrays travel in their own precision. Over one rank every operation is the
identity, and leaves no trace in the graph.

Sources: Shoeybi et al., "Megatron-LM" (2019), section 3; Korthikanti et al., "Reducing activation recomputation in
large transformer models" (2022), section 4.2.2.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar, Protocol

import numpy as np

from zerosim.autograd.operation import Empty, Into, Operation, Value, copy_of, refuse
from zerosim.core.allocation import Array
from zerosim.core.errors import ZerosimError
from zerosim.core.sharding import JOINS


class TapeGroup(Protocol):
    """The ranks of one direction that share a micro-batch; every method changes a flat, contiguous array in place."""

    @property
    def size(self) -> int: ...

    @property
    def place(self) -> int:
        """This rank's number in the group."""

    def all_reduce(self, flat: Array, /) -> None:
        """Replace `flat` by its sum over the group, in the order of the ring."""

    def reduce_scatter(self, flat: Array, /) -> None:
        """Replace this rank's piece of `flat` by its sum over the group; the other pieces become undefined."""

    def all_gather(self, flat: Array, /) -> None:
        """Replace every rank's piece of `flat` by that rank's."""

    def all_to_all(self, flat: Array, /) -> None:
        """Replace piece r of `flat` by the piece that rank r has for this one."""

    def shift(self, flat: Array, by: int, /) -> None:
        """Replace `flat` by that of the rank `by` places before."""


@dataclass(frozen=True)
class Direction:
    """The ranks of a direction of the mesh as a model's code names them, and a group of which nothing is sent.

    >>> tensor = Direction("tensor", 2)
    >>> tensor.of(64), tensor.alone
    (32, False)
    """

    name: str
    size: int = 1
    place: ClassVar[int] = 0

    @property
    def alone(self) -> bool:
        """Whether the direction has one rank."""
        return self.size == 1

    def of(self, count: int) -> int:
        """The share of one rank in `count`. Raises `ZerosimError` unless that is a multiple of `size`."""
        if count % self.size:
            raise ZerosimError(
                f"{self.size} {self.name} ranks must divide {count}; choose another size, or number of ranks")
        return count // self.size

    def all_reduce(self, flat: Array, /) -> None:
        """Do nothing: no other rank is here."""

    reduce_scatter = all_gather = all_to_all = all_reduce

    def shift(self, flat: Array, by: int, /) -> None:
        """Do nothing: no other rank is here."""


def joint(*directions: Direction) -> Direction:
    """Neighbouring directions of the mesh, the nearest first, as one: from the first to the last of several ranks.

    >>> joint(Direction("tensor", 2), Direction("context"), Direction("expert", 4))
    Direction(name='tensor+context+expert', size=8)
    >>> joint(Direction("tensor"), Direction("context", 2)), joint(Direction("tensor"), Direction("context"))
    (Direction(name='context', size=2), Direction(name='tensor', size=1))
    """
    several = [number for number, direction in enumerate(directions) if not direction.alone] or [0]
    run = directions[several[0] : several[-1] + 1]
    return Direction(JOINS.join(direction.name for direction in run), prod(direction.size for direction in run))


TapeGroups = Mapping[str, TapeGroup]
"""The groups of a rank, by the names of their directions, joined ones too."""
ALONE: TapeGroups = {}
"""The groups of a model in one piece, and of shapes: every direction stands for itself."""


def over(groups: TapeGroups, perform: Callable[..., Any]) -> Callable[..., Any]:
    """`perform` with the group of each direction that an operation names among its settings."""
    if not groups:
        return perform

    def performed(step: Any, function: Callable[..., Any], *arrays: Any, **named: Any) -> Any:
        met = {key: groups.get(value.name, value) for key, value in named.items() if isinstance(value, Direction)}
        return perform(step, function, *arrays, **{**named, **met})

    return performed


def added_over(groups: TapeGroups, sums: Iterable[float]) -> Iterable[float]:
    """Each of the sums, added over all ranks that share a micro-batch, one direction after the other, in float64."""
    shared = [group for name, group in groups.items() if group.size > 1 and JOINS not in name]
    if not shared:
        return sums
    flat = np.fromiter(sums, np.float64)
    for group in shared:
        group.all_reduce(flat)
    return [float(total) for total in flat]


@dataclass(frozen=True, eq=False)
class TapeCollective(Operation):
    """A linear operation over the group named `group`; over one rank it returns its input."""

    def __call__(self, *inputs: Value, **settings: Any) -> Value:
        return inputs[0] if settings["group"].alone else super().__call__(*inputs, **settings)


def copy_to_forward(x: Array, *, empty: Empty, group: TapeGroup) -> Array:
    """y = x, which all ranks of `group` have alike; ∂L/∂x is the sum of upstream over the group.

    >>> copy_to_forward(np.ones(2), empty=np.empty, group=Direction("tensor", 2))
    array([1., 1.])
    """
    return x


def copy_to_backward(upstream: Array, into: Into, *, empty: Empty, group: TapeGroup) -> None:
    """∂L/∂x = Σ upstream over the group."""
    gradient = into["x"]
    gradient[...] = upstream
    group.all_reduce(gradient.reshape(-1))


def reduce_from_forward(x: Array, *, empty: Empty, group: TapeGroup) -> Array:
    """y = Σ x over `group`; ∂L/∂x is upstream, which all ranks have alike.

    >>> reduce_from_forward(np.ones(2), empty=np.empty, group=Direction("tensor"))
    array([1., 1.])
    """
    return in_place(x, empty, group.all_reduce)


def gather_from_forward(x: Array, *, empty: Empty, group: TapeGroup, axis: int) -> Array:
    """y = the pieces of all ranks of `group`, joined along `axis`; ∂L/∂x is this rank's piece of the sum of upstream.

    >>> gather_from_forward(np.ones(2), empty=np.empty, group=Direction("tensor"), axis=0)
    array([1., 1.])
    """
    y = empty((*x.shape[:axis], x.shape[axis] * group.size, *x.shape[axis + 1 :]), x.dtype)
    laid = laid_out(y, group.size, axis)
    pieces = empty((group.size, *x.shape), x.dtype) if axis else laid
    pieces[group.place] = x
    group.all_gather(pieces.reshape(-1))
    if axis:
        laid[...] = pieces
    return y


def scatter_sum_to_forward(x: Array, *, empty: Empty, group: TapeGroup, axis: int) -> Array:
    """y = this rank's piece along `axis` of Σ x over `group`; ∂L/∂x is the pieces of upstream, joined.

    >>> scatter_sum_to_forward(np.ones(2), empty=np.empty, group=Direction("tensor"), axis=0)
    array([1., 1.])
    """
    laid = pieces_of(x, group, axis)
    pieces = empty(laid.shape, laid.dtype)
    pieces[...] = laid
    group.reduce_scatter(pieces.reshape(-1))
    return copy_of(pieces[group.place], empty)


def scatter_to_forward(x: Array, *, empty: Empty, group: TapeGroup, axis: int) -> Array:
    """y = this rank's piece along `axis` of x, which all ranks of `group` have alike; ∂L/∂x is all pieces, joined.

    >>> scatter_to_forward(np.array([1.0, 2.0]), empty=np.empty, group=Direction("tensor", 2), axis=0)
    array([1.])
    """
    return copy_of(pieces_of(x, group, axis)[group.place], empty)


def join_from_forward(x: Array, *, empty: Empty, group: TapeGroup, axis: int) -> Array:
    """y = the pieces of all ranks of `group`, joined along `axis`, for what all ranks then compute alike.

    >>> join_from_forward(np.ones(2), empty=np.empty, group=Direction("tensor"), axis=0)
    array([1., 1.])
    """
    return gather_from_forward(x, empty=empty, group=group, axis=axis)


def all_to_all_forward(x: Array, *, empty: Empty, group: TapeGroup) -> Array:
    """Block r of y along the first axis is this rank's block of rank r's x; ∂L/∂x is the same of upstream.

    >>> all_to_all_forward(np.ones(2), empty=np.empty, group=Direction("expert"))
    array([1., 1.])
    """
    pieces_of(x, group, 0)
    return in_place(x, empty, group.all_to_all)


def shift_forward(x: Array, *, empty: Empty, group: TapeGroup, by: int) -> Array:
    """y = x of the rank `by` places before in the ring of `group`; ∂L/∂x is upstream of the rank `by` places after.

    >>> shift_forward(np.ones(2), empty=np.empty, group=Direction("context"), by=1)
    array([1., 1.])
    """
    return in_place(x, empty, lambda flat: group.shift(flat, by))


def shift_backward(upstream: Array, into: Into, *, empty: Empty, group: TapeGroup, by: int) -> None:
    """∂L/∂x = upstream of the rank `by` places after."""
    into["x"] = shift_forward(upstream, empty=empty, group=group, by=-by)


def pass_on(upstream: Array, into: Into, *, empty: Empty, group: TapeGroup) -> None:
    """∂L/∂x = upstream."""
    into["x"] = upstream


def own_rows_forward(indices: Array, *, empty: Empty, group: TapeGroup, count: int) -> Array:
    """y = the number of each row within this rank's `count` rows of a table, and −1 for those of the other ranks.

    >>> own_rows_forward(np.array([1, 2]), empty=np.empty, group=Direction("tensor", 2), count=2)
    array([ 1, -1])
    """
    y = np.subtract(indices, group.place * count, out=empty(indices.shape, np.int64))
    np.copyto(y, -1, where=(y < 0) | (y >= count))
    return y


def in_place(x: Array, empty: Empty, move: Callable[[Array], object]) -> Array:
    """A copy of x that `move` has changed."""
    y = copy_of(x, empty)
    move(y.reshape(-1))
    return y


def pieces_of(x: Array, group: TapeGroup, axis: int) -> Array:
    """x with the piece of each rank along `axis` in front. Raises `ZerosimError` unless all pieces are equal."""
    if x.shape[axis] % group.size:
        raise refuse("a piece for each rank", f"dimension {axis} to be a multiple of {group.size} ranks", x.shape)
    return laid_out(x, group.size, axis)


def laid_out(whole: Array, size: int, axis: int) -> Array:
    """A view of `whole` with one more dimension in front: the piece of each of `size` ranks along `axis`.

    >>> laid_out(np.arange(8).reshape(2, 4), 2, axis=1).tolist()
    [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]
    """
    shape = whole.shape
    cut = whole.reshape(*shape[:axis], size, shape[axis] // size, *shape[axis + 1 :])
    return cut.transpose(axis, *range(axis), *range(axis + 1, len(shape) + 1))


def backward_by(transpose: Callable[..., Array]) -> Callable[..., None]:
    """Backward of an operation whose transpose is another one's forward: ∂L/∂x is that of upstream."""
    def backward(upstream: Array, into: Into, *, empty: Empty, **settings: Any) -> None:
        into["x"] = transpose(upstream, empty=empty, **settings)

    return backward


copy_to = TapeCollective(copy_to_forward, copy_to_backward, sends=True, alike=("x",))
reduce_from = TapeCollective(reduce_from_forward, pass_on, passes=("x",), moves=True, sends=True, alike=("y",))
gather_from, scatter_sum_to, scatter_to, join_from = (
    TapeCollective(forward, backward_by(transpose), moves=True, sends=True, alike=alike)
    for forward, transpose, alike in (
        (gather_from_forward, scatter_sum_to_forward, ()),
        (scatter_sum_to_forward, gather_from_forward, ()),
        (scatter_to_forward, gather_from_forward, ("x",)),
        (join_from_forward, scatter_to_forward, ("y",))))
all_to_all = TapeCollective(all_to_all_forward, backward_by(all_to_all_forward), moves=True, sends=True)
shift = TapeCollective(shift_forward, shift_backward, moves=True, sends=True)
own_samples = TapeCollective(scatter_to_forward, moves=True)
own_rows = Operation(own_rows_forward, moves=True)

TAPE_COLLECTIVES: Mapping[str, TapeCollective] = {operation.name: operation for operation in (
    copy_to, reduce_from, gather_from, scatter_sum_to, scatter_to, join_from, all_to_all, shift)}
"""The collectives on the tape, by name."""
