"""The part that a rank keeps and sends of a unit's states: of ranks that share them, and of what is tuned.

    sharers    the ranks beside those of data that hold the same piece of a weight: context and expert ranks, but those
               over which it is cut; tensor ranks keep copies
    share      of the data ranks' shard of a unit, the part that a rank keeps

Context ranks use a weight on pieces of the same sequences, and expert ranks on samples of their own, as data ranks do.
Megatron-LM's data-parallel groups and FSDP's mesh have them all, experts in groups of their own. So a chunk is divided
by the sharers of its weights, a collective runs once for each number of sharers, over as many times more ranks, and the
sums of gradients on the tape over these ranks are part of the reduction. Runs of zerosim keep copies instead.

    tuned      for each unit and kind, the bytes with adapters, frozen weights in few bits, and states in 8 bits, over
               those of a unit that is trained whole
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from zerosim.core.allocation import Allocator, Kind
from zerosim.core.comm import Communicator, SomeRanks
from zerosim.core.extents import Extent
from zerosim.core.sharding import Directions, parts_of
from zerosim.models.parameters import Parameter
from zerosim.plan.cluster import Cluster, Tuning
from zerosim.plan.costs import Costs, Price
from zerosim.stages.update import MASTER
from zerosim.training.config import Config

JOINING = ("context", "expert")
"""The directions whose ranks use a weight on different tokens."""

WHOLE = Counter({1: 1})
"""The pieces of a unit that no ranks share."""


def sharers(parameter: Parameter, directions: Directions) -> int:
    """The number of places that hold the same piece of a parameter, and join their data ranks.

    >>> from zerosim.autograd.tape_collectives import Direction
    >>> from zerosim.models.parameters import Cut, constant
    >>> places = Directions(tensor=2, context=2, expert=4)
    >>> sharers(Parameter("norm", (3,), constant(0.0)), places)
    8
    >>> sharers(Parameter("outer", (2, 3), constant(0.0), cut=Cut(Direction("context+expert", 8), 0)), places)
    1
    """
    cut_over = parts_of(parameter.cut.direction.name) if parameter.cut else []
    return prod(directions.sizes[name] for name in JOINING if name not in cut_over)


class Shared(Extent):
    """A data rank's shard, of which this rank has only a share in its memory."""

    __slots__ = ("share",)

    def __init__(self, shape: Any, dtype: Any, share: float) -> None:
        super().__init__(shape, dtype)
        self.share = share

    @property
    def nbytes(self) -> int:
        return round(super().nbytes * self.share)


@dataclass(frozen=True)
class Sharing:
    """The elements of each unit, by the number of their sharers; empty if no states are shared."""

    pieces: dict[str, Counter[int]] = field(default_factory=dict)
    kinds: tuple[Kind, ...] = ()
    """The kinds of states that are sharded."""
    tuned: dict[tuple[str, Kind], float] = field(default_factory=dict)
    gathers: bool = False
    """Whether all-gathers are of weights for use, not of updated ones."""

    @classmethod
    def of(cls, config: Config, cluster: Cluster) -> "Sharing":
        """The sharing of a row on `cluster`."""
        directions, pieces, tuned = config.directions, dict[str, Counter[int]](), tuned_shares(config, cluster.tuning)
        if not cluster.software.joins_data or directions.context * directions.expert == 1:
            return cls(tuned=tuned, gathers=config.stage.gathers)
        for unit in config.model.units:
            pieces[unit.name] = Counter()
            for place in unit.places:
                pieces[unit.name][sharers(place.parameter, directions)] += place.parameter.count
        return cls(pieces, config.stage.sharded, tuned, config.stage.gathers)

    def share(self, unit: str, kind: Kind = "optimizer") -> float:
        """The share that a rank keeps of its data rank's shard of a unit."""
        sharers_of, tuned = self.pieces.get(unit), self.tuned.get((unit, kind), 1.0)
        if not sharers_of or kind not in self.kinds:
            return tuned
        return tuned * sum(count / often for often, count in sharers_of.items()) / sharers_of.total()

    def allocator(self, allocate: Callable[..., Any], *, gathered: bool = False) -> Allocator:
        """The allocator `allocate` of states, which are shared if they are sharded.

        If `gathered`, it is that of whole weights and of a micro-batch's gradients.
        """
        def shared(shape: Any, dtype: Any, *, kind: Kind, owner: str) -> Any:
            share = self.tuned.get((owner, kind), 1.0) if gathered else self.share(owner, kind)
            return allocate(shape, dtype, kind=kind, owner=owner) if share == 1 else Shared(shape, dtype, share)

        return shared if self.tuned or self.pieces else allocate

    def price(self, costs: Costs, function: Callable[..., None], owner: str, comm: Communicator, given: Any) -> Price:
        """The price of a unit's collective over data ranks: all, or those of a group or across groups.

        Of a tuned unit, gradients and published weights have the share of gradients.
        """
        first, *others = given
        chunked, stride = isinstance(first, Sequence), comm.stride if isinstance(comm, SomeRanks) else 1
        array = first[0] if chunked else first
        if self.tuned and owner:
            gathers = self.gathers and "gather" in function.__name__
            share = self.tuned.get((owner, "parameters" if gathers else "gradients"), 1.0)
            array = Extent(round(len(array) * share), array.dtype)
        pieces = self.pieces.get(owner, WHOLE) if comm.size > 1 or stride == 1 else WHOLE
        total = Price(0, 0, 0)
        for often, count in pieces.items():
            part = Extent(-(-len(array) * count // (pieces.total() * often)), array.dtype)
            ranks = comm.size * often if stride == 1 and chunked else comm.size
            apart = max(stride * costs.apart // often, 1)       # sharers are nearer than data ranks
            more = costs.among(ranks, apart).price(function, [part] if chunked else part, *others)
            total = Price(*map(sum, zip(total, more, strict=True)))
        return total


def tuned_shares(config: Config, tuning: Tuning) -> dict[tuple[str, Kind], float]:
    """The bytes of each unit's states by kind over those of a unit that is trained whole; empty if all are."""
    if tuning == Tuning():
        return {}
    shares, precision, last = dict[tuple[str, Kind], float](), config.precision, len(config.in_one_piece.layers) - 1
    whole = precision.state.itemsize * len(config.rule.slots)
    in_8_bits = 1 + 4 / 256 if tuning.states_in_8_bits else precision.state.itemsize
    states = sum(precision.state.itemsize if slot == MASTER else in_8_bits for slot in config.rule.slots)
    narrow = tuning.frozen_bits / 8 or precision.weights.itemsize
    for unit in config.model.units:
        matrices = [place for place in unit.places if 0 < place.layer < last and place.parameter.decays]
        trained = sum(tuning.adapters(place.shape) for place in matrices) / unit.count if tuning.adapter_rank else 1.0
        frozen = sum(place.parameter.count for place in matrices) / unit.count * (
            narrow / precision.weights.itemsize - 1) + 1
        shares[unit.name, "parameters"] = frozen + trained if tuning.adapter_rank else 1.0
        shares[unit.name, "gradients"] = trained
        shares[unit.name, "optimizer"] = trained * (states / whole if whole else 1.0)
    return shares
