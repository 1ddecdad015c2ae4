"""Data ranks that are joined by the context and expert ranks with which they share weights, if the software does so.

    sharers    the ranks beside those of data that hold the same piece of a weight: context and expert ranks, but those
               over which it is cut; tensor ranks keep copies
    joined     all ranks of the most sharers, over which a unit is cut; a rank has as many micro-batches as before
    elsewhere  what the others of these ranks hold of a weight with `apart` times fewer sharers, as experts are: a
               parameter of (apart − 1, count) elements, with which all ranks have the same full buffer

So a chunk holds each weight's share exactly: count / ranks of one with the most sharers, apart · count / ranks of an
expert. A full buffer has memory for the rank's own elements only. A collective runs once for each number of sharers,
over every `apart`-th rank, as Megatron-LM's buffers of experts and FSDP's own group for them do.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import prod
from operator import index
from typing import Any

from zerosim.core.allocation import Allocator, Kind
from zerosim.core.comm import Communicator, Strided
from zerosim.core.extents import Extent, Shape, extent
from zerosim.core.sharding import Directions, padded, parts_of, split
from zerosim.models.parameters import Parameter, constant
from zerosim.models.units import ELSEWHERE, Layer, Unit
from zerosim.plan.cluster import Cluster
from zerosim.training.config import Config
from zerosim.verdict.resting import Resting, resting_bytes, unit_bytes

JOINING = ("context", "expert")
"""The directions whose ranks use a weight on different tokens."""


def with_sharers(config: Config, cluster: Cluster) -> Config:
    """The config of all joined ranks on `cluster`; the same if its software joins none, or none share a weight.

    If weights are broadcast, or calls have rates, only ranks that share every weight are joined.
    """
    parallel, directions = config.parallel, config.directions
    shared = {sharers(place.parameter, directions) for place in config.model.places}
    alike = parallel.publish == "broadcasts" or cluster.device.calls is not None
    more = (min if alike else max)(shared) if cluster.software.joins_data else 1
    if more == 1:
        return config
    units = tuple(replace(unit, layers=tuple(with_elsewhere(layer, more, directions) for layer in unit.layers))
                  for unit in config.model.units)
    groups = {key: more * getattr(parallel, key) for key in ("shard_ranks", "secondary_ranks")}
    return replace(
        config.on(more * config.ranks), model=replace(config.model, units=units), parallel=replace(parallel, **groups),
        train=replace(config.train, micro_batches=more * config.train.micro_batches))


def resting_of(config: Config, cluster: Cluster) -> list[Resting]:
    """The bytes that each rank of a pipeline keeps between steps, by formula."""
    return [without_elsewhere(each) for each in with_sharers(config, cluster).of_pipeline]


def without_elsewhere(config: Config) -> Resting:
    """The bytes that a rank keeps between steps, but for what other ranks hold of full buffers."""
    others = Counter[str]()
    for unit in config.model.units:
        for kind, (kept, _) in unit_bytes(config, unit).items() if unit.elsewhere else ():
            each = kept // padded(unit.count, config.ranks)
            others[kind] += each * unit.count_elsewhere * (kind not in config.stage.sharded)
    found = resting_bytes(config)
    return replace(found, **{kind: getattr(found, kind) - count for kind, count in others.items()})


def updating(config: Config, cluster: Cluster) -> int:
    """The most ranks that share the update of a weight."""
    return with_sharers(config, cluster).mesh.group if "optimizer" in config.stage.sharded else 1


def sharers(parameter: Parameter, directions: Directions) -> int:
    """The number of places that hold the same piece of a parameter and join their data ranks.

    >>> from zerosim.autograd.tape_collectives import Direction
    >>> from zerosim.models.parameters import Cut
    >>> expert = Parameter("outer", (2, 3), constant(0.0), cut=Cut(Direction("context+expert", 8), 0))
    >>> places = Directions(tensor=2, context=2, expert=4)
    >>> sharers(expert, places), sharers(replace(expert, cut=None), places)
    (1, 8)
    """
    cut_over = parts_of(parameter.cut.direction.name) if parameter.cut else []
    return prod(directions.sizes[name] for name in JOINING if name not in cut_over)


def with_elsewhere(layer: Layer, most: int, directions: Directions) -> Layer:
    """The layer with the weights of which other joined ranks hold other pieces; the same if there are none."""
    fewer = Counter[int]()
    for parameter in layer.parameters:
        fewer[most // sharers(parameter, directions)] += parameter.count
    others = tuple(Parameter(f"{ELSEWHERE}.{apart}", (apart - 1, count), constant(0.0))
                   for apart, count in fewer.items() if apart > 1)
    return replace(layer, parameters=layer.parameters + others) if others else layer


def groups_of_unit(unit: Unit) -> dict[int, int]:
    """The elements of a unit that are cut over every rank, every second one, and so on."""
    found = Counter({1: unit.count})
    for place in unit.elsewhere:
        apart, held = place.shape[0] + 1, place.shape[1]
        found[apart] += apart * held
        found[1] -= apart * held
    return +found


Collective = tuple[Communicator, tuple[Any, ...]]
"""A communicator, and the arguments of a collective over it."""


def one_by_one(groups: dict[int, int], comm: Communicator, chunks: Sequence[Any], *others: Any) -> Iterator[Collective]:
    """The collectives that serve chunks of a unit with these groups, each over its own ranks."""
    length, dtype, cut, so_far = len(chunks[0]), chunks[0].dtype, 0, 0
    for apart, elements in groups.items():
        so_far += elements
        end = length * so_far // sum(groups.values())
        ranks = comm if apart == 1 else Strided(
            comm, comm.rank // apart, comm.size // apart, first=comm.rank % apart, stride=apart)
        yield ranks, (split(Extent((end - cut) * ranks.size, dtype), ranks.size), *others)
        cut = end


class FullBuffer(Extent):
    """A unit's full buffer, of which this rank has `held` elements in its memory."""

    __slots__ = ("held",)

    def __init__(self, shape: Shape, dtype: Any, held: int) -> None:
        super().__init__(shape, dtype)
        self.held = held

    @property
    def nbytes(self) -> int:
        return self.held * self.dtype.itemsize

    def viewed(self, shape: Shape, strides: Shape | None = None) -> Extent:
        return self if shape == self.shape and strides is None else super().viewed(shape, strides)


def full_buffers(units: Iterable[Unit], ranks: int) -> Allocator:
    """An allocator of extents, among them the full buffers of units that are cut over so many ranks."""
    held = {(length,): length - unit.count_elsewhere for unit in units if unit.elsewhere
            for length in [padded(unit.count, ranks)]}

    def allocate(shape: Any, dtype: Any, *, kind: Kind, owner: str) -> Any:
        key = shape if isinstance(shape, tuple) else (index(shape),)
        return FullBuffer(key, dtype, held[key]) if key in held else extent(shape, dtype, kind=kind, owner=owner)

    return allocate
