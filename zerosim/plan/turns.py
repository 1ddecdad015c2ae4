"""Turns of units on shapes: what one takes and gives back is seen once, and takes place again wherever it comes up.

    given      arrays that a turn is handed: the input of forward; what was kept, and ∂L/∂y, of backward
    taken      arrays that it allocates
    block      of memory, by its number: those given come first, then those taken, in order

The blocks of a model are alike, so a step through a thousand of them plays a handful of turns. Afterwards memory is as
a player would leave it: the same arrays are taken and given back in the same order, and operations cost what they cost.
"""

import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from zerosim.allocation import Kind
from zerosim.autograd.graph import Instruction, Plan, Step
from zerosim.autograd.operation import Shape
from zerosim.autograd.operations.dropout import Draws
from zerosim.autograd.player import Contribution, Kept, Perform, Player, Precise, owner, perform
from zerosim.payloads.extents import Extent

Charge = Callable[[Step, Callable[..., Any]], None]
"""`charge(step, function)` lets an operation that is not carried out again take its time."""


def free(step: Step, function: Callable[..., Any]) -> None:
    """Where nobody asks for time."""


class Take(NamedTuple):
    """A block is allocated."""

    block: int
    shape: Shape
    dtype: np.dtype[Any]
    kind: Kind
    owner: str | None
    """None for the unit's own name."""


class Give(NamedTuple):
    """The turn lets go of a block."""

    block: int


class Compute(NamedTuple):
    """An operation takes place."""

    step: Step
    function: Callable[..., Any]


class Part(NamedTuple):
    """An array in a block."""

    block: int
    shape: Shape
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class Turn:
    """What takes place, in order, and what is returned: output and what is kept of it, or a gradient."""

    events: tuple[Take | Give | Compute, ...]
    returned: tuple[Part, ...]
    values: Mapping[int, Part] = field(default_factory=dict)
    saved: Mapping[int, Part] = field(default_factory=dict)
    written: frozenset[Any] = frozenset()

    def play(self, blocks: "Blocks", precise: Precise, charge: Charge) -> None:
        """Let it take place; `blocks` are those given, of which it lets go, and afterwards all that are left."""
        for event in self.events:
            match event:
                case Take(block, shape, dtype, kind, of):
                    blocks[block] = [precise.allocate(shape, dtype, kind=kind, owner=of or precise.owner)]
                case Give(block):
                    del blocks[block]
                case Compute(step, function):
                    charge(step, function)


Blocks = dict[int, list[Any]]
"""Of each block of memory the arrays in it that are held."""


def in_blocks(blocks: Blocks, part: Part) -> Any:
    """The array, a view if it is not all of its block."""
    whole: Any = owner(blocks[part.block][0])
    same = whole.shape == part.shape and whole.dtype == part.dtype
    return whole if same else Extent(part.shape, part.dtype, whole)


@dataclass(eq=False)
class Turns:
    """Turns by which a tape's units are played: `carry_out` is for operations that were not seen before.

    `charge` is told of every operation when it takes place.
    """

    carry_out: Perform = perform
    charge: Charge = free
    _seen: dict[Any, Turn] = field(default_factory=dict)

    def player(
        self, plan: Plan, parameters: Mapping[Any, Any], precise: Precise, draws: Callable[[Instruction], Draws | None],
        perform: Perform,
    ) -> "TurnPlayer":
        """As a tape asks for one."""
        return TurnPlayer(self, Player(plan, parameters, precise, draws, perform))

    def turn(self, key: Any, seen: Callable[[], Turn]) -> Turn:
        """The one that is known by `key`, or what is seen now."""
        if key not in self._seen:
            self._seen[key] = seen()
        return self._seen[key]


class TurnPlayer:
    """As `Player`; what is not on shapes, as tokens are not, its own player plays."""

    def __init__(self, turns: Turns, player: Player) -> None:
        self._turns = turns
        self._player = player

    def forward(self, x: Any) -> tuple[Any, Kept]:
        player = self._player
        if not isinstance(x, Extent):
            return player.forward(x)
        key = "forward", player.plan, x.shape, x.dtype, self._precision
        turn, blocks = self._turns.turn(key, lambda: forward_seen(player, self._turns.carry_out, x)), {0: [x]}
        turn.play(blocks, player.precise, self._turns.charge)
        (y,) = (in_blocks(blocks, part) for part in turn.returned)
        values = {slot: in_blocks(blocks, part) for slot, part in turn.values.items()}
        return y, Kept(player.plan, values, {slot: in_blocks(blocks, part) for slot, part in turn.saved.items()})

    def backward(self, kept: Kept, upstream: Any, contribution: Contribution | None) -> list[Any]:
        player, held = self._player, [upstream]
        del upstream
        if not all(isinstance(each, Extent) for each in (*held, *kept.values.values(), *kept.saved.values())):
            return player.backward(kept, held.pop(), contribution)
        values, saved, (upstream_part,), blocks = handed_over(kept, held)
        written = None if contribution is None else (contribution.flat.dtype, frozenset(contribution.written))
        described = (*values.items(), None, *saved.items(), upstream_part)
        key = "backward", player.plan, self._precision, written, described
        turn = self._turns.turn(
            key, lambda: backward_seen(player, self._turns.carry_out, values, saved, upstream_part, contribution))
        turn.play(blocks, player.precise, self._turns.charge)
        if contribution is not None:
            contribution.written |= turn.written
        return [in_blocks(blocks, part) for part in turn.returned]

    @property
    def _precision(self) -> Any:
        return next((each.dtype for each in self._player.parameters.values()), None)


def handed_over(kept: Kept, held: list[Any]) -> tuple[dict[int, Part], dict[int, Part], list[Part], Blocks]:
    """Empties `kept` and `held`: what was in them, and in which blocks."""
    blocks, numbers = Blocks(), dict[int, int]()

    def part(array: Any) -> Part:
        number = numbers.setdefault(id(owner(array)), len(numbers))
        blocks.setdefault(number, []).append(array)
        return Part(number, array.shape, array.dtype)

    values = {slot: part(kept.values.pop(slot)) for slot in [*kept.values]}
    saved = {slot: part(kept.saved.pop(slot)) for slot in [*kept.saved]}
    return values, saved, [part(held.pop())], blocks


class Seen:
    """What takes place while a player plays on stand-ins for what it is given."""

    def __init__(self, carry_out: Perform, owner: str) -> None:
        self.events: list[Take | Give | Compute] = []
        self._carry_out = carry_out
        self._owner = owner
        self._numbers: dict[int, int] = {}
        self._count = 0

    def given(self, shape: Shape, dtype: np.dtype[Any]) -> Any:
        """A stand-in for all of a block."""
        found = Extent(shape, dtype)
        self._numbers[id(found)] = self._count
        weakref.finalize(found, self.events.append, Give(self._count)).atexit = False
        self._count += 1
        return found

    def allocate(self, shape: Any, dtype: Any, *, kind: Kind, owner: str) -> Any:
        number, found = self._count, self.given(shape, dtype)
        self.events.append(Take(number, found.shape, found.dtype, kind, None if owner == self._owner else owner))
        return found

    def perform(self, step: Step | None, function: Callable[..., Any], *arrays: Any, **named: Any) -> Any:
        assert step is not None
        self.events.append(Compute(step, function))
        return self._carry_out(step, function, *arrays, **named)

    def part(self, array: Any) -> Part:
        return Part(self._numbers[id(owner(array))], array.shape, array.dtype)

    def parts(self, arrays: Mapping[int, Any]) -> dict[int, Part]:
        return {slot: self.part(array) for slot, array in arrays.items()}


def watching(player: Player, carry_out: Perform) -> tuple[Seen, Player]:
    """The same player, seen: what it allocates is nobody's."""
    seen = Seen(carry_out, player.precise.owner)
    precise = Precise(seen.allocate, player.precise.owner)
    return seen, Player(player.plan, player.parameters, precise, player.draws, seen.perform)


def forward_seen(player: Player, carry_out: Perform, x: Any) -> Turn:
    seen, watched = watching(player, carry_out)
    stand_in = seen.given(x.shape, x.dtype)
    y, kept = watched.forward(stand_in)
    return Turn(tuple(seen.events), (seen.part(y),), seen.parts(kept.values), seen.parts(kept.saved))


def backward_seen(
    player: Player, carry_out: Perform, values: Mapping[int, Part], saved: Mapping[int, Part], upstream: Part,
    contribution: Contribution | None,
) -> Turn:
    seen, watched = watching(player, carry_out)
    kept, held = stand_ins(seen, player.plan, values, saved, upstream)
    found = watched.backward(kept, held.pop(), contribution)
    written = frozenset(contribution.written) if contribution is not None else frozenset()
    return Turn(tuple(seen.events), tuple(map(seen.part, found)), written=written)


def stand_ins(
    seen: Seen, plan: Plan, values: Mapping[int, Part], saved: Mapping[int, Part], upstream: Part
) -> tuple[Kept, list[Any]]:
    """For what was kept, and in a list for ∂L/∂y: nothing else holds them."""
    parts = [*values.values(), *saved.values(), upstream]
    wholes = {number: seen.given(shape, dtype) for number, (shape, dtype) in sorted(largest(parts).items())}

    def part(of: Part) -> Any:
        whole = wholes[of.block]
        return whole if (whole.shape, whole.dtype) == of[1:] else Extent(of.shape, of.dtype, whole)

    kept = Kept(plan, {slot: part(of) for slot, of in values.items()}, {slot: part(of) for slot, of in saved.items()})
    return kept, [part(upstream)]


def largest(parts: Iterable[Part]) -> dict[int, tuple[Shape, np.dtype[Any]]]:
    """Of each block the shape and dtype of the first array in it."""
    found: dict[int, tuple[Shape, np.dtype[Any]]] = {}
    for part in parts:
        found.setdefault(part.block, (part.shape, part.dtype))
    return found
