"""The cut of a flat vector into chunks, and their owners: arithmetic only, the same in every stage and world.

    chunk length   L = ceil(count / size)
    chunk c        elements c·L up to (c + 1)·L, clipped to count: the last chunks may be shorter, or empty
    padded         L · size: with padding all chunks are equal
    mesh           which ranks a vector is cut over, and which hold copies of the same chunk
    directions     which ranks share a micro-batch, or the layers of a model, and on which place each of them is

Every figure and every order of addition in zerosim refers to this one map from element to chunk.

`split` gives `Chunks`: `chunks[c]` is a view, `chunks[a:b]` one contiguous view of several, which algorithms that
halve or double need to send in one message. A `Layout` says whether a buffer holds a whole unit or a stretch of
chunks; nothing guesses it from a length.
"""

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from math import prod
from typing import Any, overload

from zerosim.core.comm import Communicator, among, strided

JOINS = "+"
"""The sign between the names of directions that are joined."""


def parts_of(name: str) -> list[str]:
    """The directions that a name joins, the nearest first.

    >>> parts_of("tensor+context"), parts_of("tensor")
    (['tensor', 'context'], ['tensor'])
    """
    return name.split(JOINS)


def chunk_length(count: int, size: int) -> int:
    """ceil(count / size), in elements.

    >>> chunk_length(10, 4)
    3
    """
    return -(-count // size)


def padded(count: int, size: int) -> int:
    """`count` rounded up to a multiple of `size`, in elements.

    >>> padded(10, 4)
    12
    """
    return chunk_length(count, size) * size


def bounds(count: int, size: int) -> list[tuple[int, int]]:
    """The first element of each chunk and the one after its last.

    >>> bounds(4, 3)
    [(0, 2), (2, 4), (4, 4)]
    """
    length = chunk_length(count, size)
    return [(min(c * length, count), min((c + 1) * length, count)) for c in range(size)]


class Chunks(Sequence[Any]):
    """The chunks of one flat vector: `chunks[c]` is chunk c, `chunks[a:b]` chunks a … b − 1 as one contiguous piece.

    The vector is any object with a length and slices. Slices of an array are views, so writing them writes the vector.
    Nothing is copied. `chunks[c] += x` adds in place, and `chunks[c] = x` writes the elements of x.

    >>> import numpy as np
    >>> vector = np.arange(5)
    >>> Chunks(vector, 3)[2] += 10
    >>> vector
    array([ 0,  1,  2,  3, 14])
    >>> Chunks(vector, 3)[2] = np.array([5])
    >>> vector
    array([0, 1, 2, 3, 5])
    >>> chunks = Chunks([10, 11, 12, 13, 14], 3)
    >>> chunks[0], chunks[2], chunks[1:], list(split([10, 11, 12, 13], 3))
    ([10, 11], [14], [12, 13, 14], [[10, 11], [12, 13], []])
    """

    def __init__(self, flat: Any, size: int) -> None:
        self.flat = flat
        self._size = size
        self._length = chunk_length(len(flat), size)

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Any: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            first, last, step = index.indices(self._size)
            if step != 1:
                raise IndexError(f"chunks[a:b:{step}]: chunks can be sliced only with step 1")
            return self.flat[first * self._length : last * self._length]
        if not -self._size <= index < self._size:
            raise IndexError(f"chunk {index} of {self._size}: chunks are numbered 0 … {self._size - 1}; count them "
                             "modulo comm.size, as in chunks[c % comm.size]")
        start = index % self._size * self._length
        return self.flat[start : start + self._length]

    def __setitem__(self, index: int | slice, value: Any) -> None:
        self[index][...] = value


split = Chunks
"""`split(flat, size)`: one chunk of `flat` for each of `size` ranks."""


@dataclass(frozen=True)
class Mesh:
    """The ranks that share a unit with `rank`, and the ranks that hold copies of its shard.

    `size` ranks form groups of `group` neighbours. A unit is always cut into `size` chunks; each rank of a group owns
    as many neighbouring ones as there are groups, and ranks with the same place in their groups own the same chunks.
    With one group of all ranks, which is plain ZeRO, a rank owns one chunk without copies. PyTorch calls the two
    dimensions of such a mesh shard and replicate; MiCS calls a group a partition group (Zhang et al., 2022).

    In the lockstep world `rank` is the vector of all ranks, and the properties are vectors too.

    >>> mesh = Mesh(rank=5, size=6, group=2)
    >>> mesh.place, mesh.replicas, mesh.replica, mesh.owned
    (1, 3, 2, [3, 4, 5])
    >>> [Mesh(rank, 4, 4).owned for rank in range(2)]
    [[0], [1]]
    """

    rank: Any
    size: int
    group: int

    @cached_property
    def place(self) -> Any:
        """This rank's place in its group; it determines the owned chunks."""
        return self.rank % self.group

    @property
    def replicas(self) -> int:
        """The number of ranks that own the same chunks, which is that of groups and of the chunks of a rank."""
        return self.size // self.group

    @property
    def owned(self) -> list[Any]:
        """The chunks that this rank owns."""
        return [self.place * self.replicas + part for part in range(self.replicas)]

    @property
    def replica(self) -> Any:
        """The number of this rank's group."""
        return self.rank // self.group

    @property
    def neighbours(self) -> list[Any]:
        """The ranks of this rank's group, in order.

        >>> Mesh(rank=5, size=6, group=2).neighbours, Mesh(rank=5, size=6, group=2).copies
        ([4, 5], [1, 3, 5])
        """
        return [self.replica * self.group + place for place in range(self.group)]

    @property
    def copies(self) -> list[Any]:
        """The ranks that own the same chunks as this one, including itself, in order."""
        return [self.place + replica * self.group for replica in range(self.replicas)]

    @property
    def groups(self) -> list[list[Any]]:
        """The ranks of each group, in the order of their places.

        >>> Mesh(rank=5, size=6, group=2).groups
        [[0, 1], [2, 3], [4, 5]]
        """
        return [replace(self, rank=rank).neighbours for rank in replace(self, rank=0).copies]

    def within(self, comm: Communicator) -> Communicator:
        """The communicator of this rank's group, over which a unit is sharded.

        >>> from zerosim.worlds.local import spawn
        >>> def program(comm):
        ...     mesh = Mesh(comm.rank, comm.size, group=2)
        ...     within, across = mesh.within(comm), mesh.across(comm)
        ...     return within.rank, within.size, across.rank, across.size
        >>> spawn(program, ranks=6)
        [(0, 2, 0, 3), (1, 2, 0, 3), (0, 2, 1, 3), (1, 2, 1, 3), (0, 2, 2, 3), (1, 2, 2, 3)]
        """
        if self.replicas == 1:
            return comm
        return strided(comm, self.place, self.group, first=self.replica * self.group, stride=1)

    def across(self, comm: Communicator) -> Communicator:
        """The communicator of the ranks that own the same chunks, one of each group; its rank k belongs to group k."""
        return strided(comm, self.replica, self.replicas, first=self.place, stride=self.group)


@dataclass(frozen=True)
class Directions:
    """The ranks that train one copy of the model, by direction of the mesh; a place is a rank's number among them.

    As in Megatron-LM, the tensor ranks are nearest, then context and expert ranks, which share a micro-batch and its
    tensors; then the `data` ranks, which have different micro-batches; the ranks of a pipeline, each with some of the
    layers, are farthest. Neighbouring directions of a model's code are joined by their names, such as `tensor+context`.

    >>> directions = Directions(tensor=2, expert=2, data=2)
    >>> directions.places, directions.place(7), directions.data_rank(7), directions.group("expert", 3)
    (4, 3, 1, [1, 3])
    >>> directions.group("tensor+context+expert", 3)
    [0, 1, 2, 3]
    >>> directions = Directions(tensor=2, pipeline=2, data=2)
    >>> [directions.rank(place, data_rank=0) for place in range(4)], directions.place(7), directions.data_rank(7)
    ([0, 1, 4, 5], 3, 1)
    """

    tensor: int = 1
    context: int = 1
    expert: int = 1
    pipeline: int = 1
    data: int = 1

    @property
    def sizes(self) -> dict[str, int]:
        """The number of ranks in each direction of a model's code, the nearest first."""
        return {"tensor": self.tensor, "context": self.context, "expert": self.expert}

    @cached_property
    def groups(self) -> dict[str, int]:
        """The number of ranks in each direction, and in each joined run that begins and ends with several ranks."""
        several = [number for number, size in enumerate(self.sizes.values()) if size > 1]
        runs = [[*self.sizes][first : last + 1] for first, last in combinations(several, 2)]
        return self.sizes | {JOINS.join(run): prod(self.sizes[name] for name in run) for run in runs}

    @property
    def side_by_side(self) -> int:
        """The number of places that have the same layers."""
        return prod(self.sizes.values())

    @property
    def places(self) -> int:
        return self.side_by_side * self.pipeline

    @property
    def ranks(self) -> int:
        """The number of all ranks: of each place as many as have micro-batches of their own."""
        return self.places * self.data

    @property
    def words(self) -> str:
        """The directions of several ranks in a word, as in Megatron-LM: the initial and p.

        >>> Directions(tensor=2, expert=4).words, Directions(tensor=2, pipeline=2).words, Directions().words
        ('tp2 × ep4', 'tp2 × pp2', '')
        """
        sizes = {**self.sizes, "pipeline": self.pipeline}
        return " × ".join(f"{name[0]}p{size}" for name, size in sizes.items() if size > 1)

    def place(self, rank: int) -> int:
        """The place of a rank."""
        number = rank // (self.side_by_side * self.data) % self.pipeline
        return rank % self.side_by_side + number * self.side_by_side

    def data_rank(self, rank: int) -> int:
        """The number of a rank among those of its place, which have different micro-batches."""
        return rank // self.side_by_side % self.data

    def rank(self, place: int, data_rank: int = 0) -> int:
        """The rank of a place with this number among those of the place."""
        pipeline_rank, model_rank = divmod(place, self.side_by_side)
        return model_rank + self.side_by_side * (data_rank + self.data * pipeline_rank)

    def stride(self, name: str) -> int:
        """The distance between neighbours of a direction."""
        names = [*self.sizes]
        return prod(self.sizes[nearer] for nearer in names[: names.index(parts_of(name)[0])])

    def coordinates(self, place: int) -> dict[str, int]:
        """The number of a place in each direction of a model's code, joined ones last."""
        return {name: place // self.stride(name) % size for name, size in self.groups.items()}

    def group(self, name: str, place: int) -> list[int]:
        """The places that share a direction with `place`, in order; `ends` are the first and the last of a pipeline.

        >>> [Directions(pipeline=4).group("ends", place) for place in (0, 1, 3)]
        [[0, 3], [1], [0, 3]]
        """
        if name in ("pipeline", "ends"):
            stages = [*range(place % self.side_by_side, self.places, self.side_by_side)]
            ends = stages[:: max(len(stages) - 1, 1)]
            return stages if name == "pipeline" else ends if place in ends else [place]
        stride = self.stride(name)
        first = place - self.coordinates(place)[name] * stride
        return [first + number * stride for number in range(self.groups[name])]

    def along(self, comm: Communicator, name: str) -> Communicator:
        """The communicator of this rank's group in a direction."""
        place, data_rank = self.place(comm.rank), self.data_rank(comm.rank)
        return among(comm, [self.rank(member, data_rank) for member in self.group(name, place)])

    def data_ranks(self, comm: Communicator) -> Communicator:
        """The communicator of the ranks on this rank's place."""
        if self.places == 1:
            return comm
        first = self.rank(self.place(comm.rank))
        return strided(comm, self.data_rank(comm.rank), self.data, first=first, stride=self.side_by_side)


@dataclass(frozen=True)
class Layout:
    """The place of a buffer's elements in a unit: chunks `first` … `last` − 1 of `size`, padding included.

    A full buffer has all chunks; a rank's shard has the chunks that it owns.

    >>> full(10, 4).length, Layout(10, 4, first=3, last=4).length, Layout(10, 4, first=3, last=4).start
    (12, 3, 9)
    """

    count: int
    """The number of elements of the unit, without padding."""
    size: int
    first: int
    last: int

    @property
    def length(self) -> int:
        """The number of elements of the buffer, with padding."""
        return operator.index(self.last - self.first) * chunk_length(self.count, self.size)

    @property
    def start(self) -> int:
        """The position in the unit of the buffer's first element."""
        return self.first * chunk_length(self.count, self.size)

    @property
    def stop(self) -> int:
        """The position in the unit after the buffer's last element, without padding."""
        return max(min(self.start + self.length, self.count), self.start)

    def part(self, buffer: Any, other: "Layout") -> Any:
        """The elements of `buffer` that lie in `other`, a view.

        >>> shard = Layout(10, 4, first=1, last=2)
        >>> full(10, 4).part(list(range(12)), shard), shard.part([3, 4, 5], shard)
        ([3, 4, 5], [3, 4, 5])
        """
        assert len(buffer) == self.length, (len(buffer), self)
        assert self.first <= other.first <= other.last <= self.last, (self, other)
        start = other.start - self.start
        return buffer[start : start + other.length]

    def chunks(self, buffer: Any) -> Iterator[tuple[int, Any]]:
        """The number and the elements of each chunk in `buffer`, views.

        >>> list(Layout(10, 4, first=2, last=4).chunks([6, 7, 8, 9, 0, 0]))
        [(2, [6, 7, 8]), (3, [9, 0, 0])]
        """
        for chunk in range(self.first, self.last):
            yield chunk, self.part(buffer, replace(self, first=chunk, last=chunk + 1))


def full(count: int, size: int) -> Layout:
    """The layout of a buffer for a whole unit of `count` elements, cut into `size` chunks.

    >>> full(10, 4).length, full(10, 4).stop
    (12, 10)
    """
    return Layout(count, size, 0, size)


def owned(count: int, mesh: Mesh) -> Layout:
    """The layout of a shard: the chunks that a rank owns.

    >>> owned(10, Mesh(rank=3, size=4, group=2)).length, owned(10, Mesh(rank=3, size=4, group=2)).start
    (6, 6)
    """
    return Layout(count, mesh.size, mesh.place * mesh.replicas, (mesh.place + 1) * mesh.replicas)
