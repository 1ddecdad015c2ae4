"""Segments of units on shapes: the allocations of one are recorded once and replayed for every equal one.

    given      arrays that a segment gets: the input of forward; the kept arrays, and ∂L/∂y, of backward
    taken      arrays that it allocates
    block      a block of memory, by its number: given ones come first, then those taken, in order

The blocks of a model are alike, so a step through a thousand of them plays a handful of segments. Memory equals a
player's, and operations have their costs; but an array that a segment both allocates and frees is not made again: only
the peak of such arrays between two visible events is reported.

An alternative was to plan three blocks and multiply. That is not exact, since a peak may move to another place as
blocks are added.
"""

import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np

from zerosim.autograd.graph import GraphPlan, Instruction, Step
from zerosim.autograd.operation import Shape
from zerosim.autograd.operations.dropout import Draws
from zerosim.autograd.player import Contribution, Kept, Perform, Player, Precise, perform
from zerosim.autograd.selection import SelectedPlan
from zerosim.core.allocation import Kind
from zerosim.core.errors import ZerosimError
from zerosim.core.extents import Extent, owner

Charge = Callable[[Step, Callable[..., Any]], None]
"""`charge(step, function)` adds the time of an operation that is not run again."""


def free(step: Step, function: Callable[..., Any]) -> None:
    """The default `charge`: no time is counted."""


Uncounted = Callable[[Shape, str | None], bool]
"""`uncounted(shape, owner)` says whether an array has no memory; an owner of None stands for the unit itself."""


class Take(NamedTuple):
    """A block is allocated."""

    block: int
    shape: Shape
    dtype: np.dtype[Any]
    kind: Kind
    owner: str | None
    """None for the unit's own name."""


class Give(NamedTuple):
    """The segment frees a block."""

    block: int


class SegmentCompute(NamedTuple):
    """An operation runs."""

    step: Step
    function: Callable[..., Any]


class Above(NamedTuple):
    """The peak of blocks that are allocated and freed here, in bytes by kind and in total."""

    held: tuple[tuple[Kind, int], ...]
    total: int


class Part(NamedTuple):
    """An array in a block; `strides` are those of an `Extent`."""

    block: int
    shape: Shape
    dtype: np.dtype[Any]
    strides: Shape | None = None

    def seen_in(self, whole: Any) -> Any:
        """This array in its block; a view if it is not all of it."""
        if whole.shape == self.shape and whole.dtype == self.dtype and self.strides is None:
            return whole
        return Extent(self.shape, self.dtype, whole, self.strides)


class KeptParts(NamedTuple):
    """The parts of what is kept of a micro-batch: values, saved arrays and upstreams, by slot."""

    values: Mapping[int, Part]
    saved: Mapping[int, Part]
    upstreams: Mapping[int, Part]

    @property
    def key(self) -> tuple[Any, ...]:
        return tuple(tuple(each.items()) for each in self)

    def seen_in(self, plan: GraphPlan, seen: Callable[[Part], Any]) -> Kept:
        """The arrays that `seen` gives for these parts."""
        return Kept(plan, *({slot: seen(part) for slot, part in each.items()} for each in self))


NOTHING_KEPT = KeptParts({}, {}, {})


@dataclass(frozen=True)
class SeenSegment:
    """The operations and events of a segment in order, and its results: output and kept arrays, or a gradient."""

    computed: tuple[SegmentCompute, ...]
    events: tuple[Take | Give | Above, ...]
    returned: tuple[Part, ...]
    kept: KeptParts
    written: frozenset[Any]
    """The parameters that have gradients afterwards."""

    def play(self, segments: "SeenSegments", blocks: "Blocks", precise: Precise) -> None:
        """Replay the segment; `blocks` has the given blocks, and afterwards all that are left."""
        for step, function in self.computed:
            segments.charge(step, function)
        for event in self.events:
            match event:
                case Above(held, total):
                    segments.pass_by(held, total)
                case Take(block, shape, dtype, kind, of):
                    blocks[block] = [precise.allocate(shape, dtype, kind=kind, owner=of or precise.owner)]
                case Give(block):
                    del blocks[block]


Blocks = dict[int, list[Any]]
"""The arrays in each block of memory."""


BackwardRun = Callable[[Player, Kept, list[Any]], list[Any] | None]
"""`run(player, kept, held)` runs a player backward; `held` has ∂L/∂y, if that is given."""


def in_blocks(blocks: Blocks, part: Part) -> Any:
    """The array of a part."""
    return part.seen_in(owner(blocks[part.block][0]))


@dataclass(eq=False)
class SeenSegments:
    """The recorded segments of a tape's units; `carry_out` runs operations that have not been recorded.

    `charge` is called for every operation, and `pass_by(held, total)` for blocks that are allocated and freed within a
    segment, except those that are `uncounted`.
    """

    pass_by: Callable[[Iterable[tuple[Kind, int]], int], None] = lambda held, total: None
    uncounted: Uncounted = lambda shape, owner: False
    carry_out: Perform = perform
    charge: Charge = free
    _seen: dict[Any, SeenSegment] = field(default_factory=dict)

    def player(
        self, plan: GraphPlan, parameters: Mapping[Any, Any], precise: Precise,
        draws: Callable[[Instruction], Draws | None],
        perform: Perform,
    ) -> "SegmentPlayer":
        """The player of a segment for a tape."""
        return SegmentPlayer(self, Player(plan, parameters, precise, draws, perform))

    def segment(self, key: Any, seen: Callable[[], SeenSegment]) -> SeenSegment:
        """The segment recorded under `key`; it is recorded now if it is new."""
        if key not in self._seen:
            self._seen[key] = seen()
        return self._seen[key]


class SegmentPlayer:
    """A `Player` that replays recorded segments; inputs that are real arrays (tokens) go to its own player."""

    def __init__(self, segments: SeenSegments, player: Player) -> None:
        self._segments = segments
        self._player = player

    def forward(self, x: Any) -> tuple[Any, Kept]:
        player = self._player
        if not isinstance(x, Extent):
            return player.forward(x)
        key = "forward", player.plan, x.shape, x.dtype, x.strides, self._precision
        segment, blocks = self._segments.segment(key, lambda: forward_seen(self._segments, player, x)), {0: [x]}
        segment.play(self._segments, blocks, player.precise)
        (y,) = (in_blocks(blocks, part) for part in segment.returned)
        return y, segment.kept.seen_in(player.plan, partial(in_blocks, blocks))

    def again(self, x: Any, selected: SelectedPlan, given: Kept) -> Kept:
        player, held = self._player, [x]
        if not on_shapes(given, x):
            return player.again(x, selected, given)
        del x
        parts, (x_part,), blocks = handed_over(given, held)
        segment = self._segments.segment(
            ("again", selected, self._precision, parts.key, x_part),
            lambda: again_seen(self._segments, player, selected, parts, x_part))
        segment.play(self._segments, blocks, player.precise)
        return segment.kept.seen_in(player.plan, partial(in_blocks, blocks))

    def backward(self, kept: Kept, upstream: Any, contribution: Contribution | None) -> list[Any]:
        held = [upstream]
        del upstream
        return self._backward(
            "backward", kept, held, contribution,
            lambda player, kept, held: player.backward(kept, held.pop(), contribution))

    def backward_input(self, kept: Kept, upstream: Any) -> list[Any]:
        held = [upstream]
        del upstream
        return self._backward(
            "backward of the input", kept, held, None,
            lambda player, kept, held: player.backward_input(kept, held.pop()))

    def backward_weights(self, kept: Kept, contribution: Contribution | None) -> None:
        self._backward(
            "backward of the weights", kept, [], contribution,
            lambda player, kept, held: player.backward_weights(kept, contribution))

    def _backward(
        self, what: str, kept: Kept, held: list[Any], contribution: Contribution | None, run: BackwardRun
    ) -> list[Any]:
        """The result of `run`, which frees what is `held`."""
        player = self._player
        if not on_shapes(kept, *held):
            return run(player, kept, held) or []
        parts, given, blocks = handed_over(kept, held)
        written = None if contribution is None else (contribution.flat.dtype, frozenset(contribution.written))
        segment = self._segments.segment(
            (what, player.plan, self._precision, written, parts.key, *given),
            lambda: backward_seen(self._segments, player, parts, given, contribution, run))
        segment.play(self._segments, blocks, player.precise)
        left = segment.kept.seen_in(player.plan, partial(in_blocks, blocks))
        kept.values, kept.saved, kept.upstreams = left.values, left.saved, left.upstreams
        if contribution is not None:
            contribution.written |= segment.written
        return [in_blocks(blocks, part) for part in segment.returned]

    @property
    def _precision(self) -> Any:
        return next((each.dtype for each in self._player.parameters.values()), None)


def on_shapes(kept: Kept, *others: Any) -> bool:
    """Whether all arrays are shapes."""
    return all(isinstance(each, Extent) for each in (
        *others, *kept.values.values(), *kept.saved.values(), *kept.upstreams.values()))


def handed_over(kept: Kept, held: list[Any]) -> tuple[KeptParts, list[Part], Blocks]:
    """Empty `kept` and `held`; the parts that were in them, and their blocks."""
    blocks, numbers = Blocks(), dict[int, int]()

    def part(array: Any) -> Part:
        number = numbers.setdefault(id(owner(array)), len(numbers))
        blocks.setdefault(number, []).append(array)
        return Part(number, array.shape, array.dtype, array.strides)

    parts = KeptParts(*({slot: part(each.pop(slot)) for slot in [*each]}
                        for each in (kept.values, kept.saved, kept.upstreams)))
    return parts, [part(held.pop()) for _ in [*held]], blocks


class SegmentRecord:
    """Records the events of a player that runs on stand-ins for its given arrays."""

    def __init__(self, carry_out: Perform, owner: str) -> None:
        self.events: list[Take | Give] = []
        self.computed: list[SegmentCompute] = []
        self._carry_out = carry_out
        self._owner = owner
        self._numbers: dict[int, int] = {}
        self._count = 0

    def given(self, shape: Shape, dtype: np.dtype[Any]) -> Any:
        """A stand-in for a whole block."""
        found = Extent(shape, dtype)
        self._numbers[id(found)] = self._count
        weakref.finalize(found, self._freed, id(found)).atexit = False
        self._count += 1
        return found

    def _freed(self, block: int) -> None:
        self.events.append(Give(self._numbers.pop(block)))

    def allocate(self, shape: Any, dtype: Any, *, kind: Kind, owner: str) -> Any:
        number, found = self._count, self.given(shape, dtype)
        self.events.append(Take(number, found.shape, found.dtype, kind, None if owner == self._owner else owner))
        return found

    def perform(self, step: Step | None, function: Callable[..., Any], *arrays: Any, **named: Any) -> Any:
        assert step is not None
        self.computed.append(SegmentCompute(step, function))
        return self._carry_out(step, function, *arrays, **named)

    def part(self, array: Any) -> Part:
        number = self._numbers.get(id(owner(array)))
        if number is None:
            raise undeclared(array.nbytes)
        return Part(number, array.shape, array.dtype, array.strides)

    def parts(self, kept: Kept) -> KeptParts:
        return KeptParts(*({slot: self.part(array) for slot, array in each.items()}
                           for each in (kept.values, kept.saved, kept.upstreams)))

    def segment(
        self, uncounted: Uncounted, returned: Sequence[Part], kept: KeptParts = NOTHING_KEPT,
        written: frozenset[Any] = frozenset(),
    ) -> SeenSegment:
        """The recorded segment."""
        staying = {part.block for part in (*returned, *(part for each in kept for part in each.values()))}
        events = tuple(summed_up(tuple(self.events), staying, uncounted))
        return SeenSegment(tuple(self.computed), events, tuple(returned), kept, written)


def summed_up(
    events: Iterable[Take | Give], staying: Collection[int], uncounted: Uncounted
) -> Iterator[Take | Give | Above]:
    """The visible events: blocks that are allocated and freed in between are replaced by their peak."""
    passing, alive, most, total = dict[int, tuple[Kind, int]](), Counter[Kind](), Counter[Kind](), 0
    for event in events:
        if isinstance(event, Take) and event.block not in staying:
            count = 0 if uncounted(event.shape, event.owner) else prod(event.shape) * event.dtype.itemsize
            passing[event.block] = event.kind, count
            alive[event.kind] += count
            most, total = most | alive, max(total, alive.total())
        elif event.block in passing:
            kind, count = passing.pop(event.block)
            alive[kind] -= count
        else:
            yield from [Above(tuple(most.items()), total)] if total else []
            yield event
            most, total = +alive, alive.total()
    yield from [Above(tuple(most.items()), total)] if total else []
    if passing:
        raise undeclared(sum(count for _, count in passing.values()))


def undeclared(count: int) -> ZerosimError:
    """The error for memory that an operation keeps by itself."""
    return ZerosimError(f"an operation keeps {count:,} bytes that its declaration leaves out, or that empty did not "
                        "allocate; zerosim check FILE names it")


def watching(segments: SeenSegments, player: Player) -> tuple[SegmentRecord, Player]:
    """The player with its allocations recorded; they count in no ledger."""
    seen = SegmentRecord(segments.carry_out, player.precise.owner)
    precise = Precise(seen.allocate, player.precise.owner)
    return seen, Player(player.plan, player.parameters, precise, player.draws, seen.perform)


def forward_seen(segments: SeenSegments, player: Player, x: Any) -> SeenSegment:
    seen, watched = watching(segments, player)
    stand_in = Part(0, x.shape, x.dtype, x.strides).seen_in(seen.given(x.shape, x.dtype))
    y, kept = watched.forward(stand_in)
    return seen.segment(segments.uncounted, [seen.part(y)], seen.parts(kept))


def again_seen(
    segments: SeenSegments, player: Player, selected: SelectedPlan, parts: KeptParts, x: Part
) -> SeenSegment:
    seen, watched = watching(segments, player)
    given, held = stand_ins(seen, selected.forward, parts, [x])
    kept = watched.again(held.pop(), selected, given)
    return seen.segment(segments.uncounted, [], seen.parts(kept))


def backward_seen(
    segments: SeenSegments, player: Player, parts: KeptParts, given: Sequence[Part],
    contribution: Contribution | None, run: BackwardRun,
) -> SeenSegment:
    seen, watched = watching(segments, player)
    kept, held = stand_ins(seen, player.plan, parts, given)
    found = run(watched, kept, held) or ()
    written = frozenset(contribution.written) if contribution is not None else frozenset()
    return seen.segment(segments.uncounted, [*map(seen.part, found)], seen.parts(kept), written)


def stand_ins(
    seen: SegmentRecord, plan: GraphPlan, parts: KeptParts, others: Sequence[Part]
) -> tuple[Kept, list[Any]]:
    """Stand-ins for the kept arrays, and in a list for the others, without other references."""
    every = [*(part for each in parts for part in each.values()), *others]
    wholes = {number: seen.given(shape, dtype) for number, (shape, dtype) in sorted(largest(every).items())}

    def whole(part: Part) -> Any:
        return part.seen_in(wholes[part.block])

    return parts.seen_in(plan, whole), [*map(whole, others)]


def largest(parts: Iterable[Part]) -> dict[int, tuple[Shape, np.dtype[Any]]]:
    """The shape and dtype of the first array in each block."""
    found: dict[int, tuple[Shape, np.dtype[Any]]] = {}
    for part in parts:
        found.setdefault(part.block, (part.shape, part.dtype))
    return found
