"""What every rank of a stage's step holds of every chunk, after each round of messages, and where that is wrong.

    cell      a chunk of a unit's weights, gradient or optimizer state in the memory of a rank
    element   the number of a chunk: the chunks of all units are counted one after the other
    moment    a computation, a round of a collective, or the release of arrays; then every rank holds something new

Contents are observed by `symbolic_step.py`, and not derived from a description of the stage. Whether the arrays also
have the bytes of a training is the caller's to compare: `held_bytes` and `sent_bytes` are what these arrays would have
with the sizes of the model.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from zerosim.core.allocation import MODEL_STATES, Kind
from zerosim.core.terms import Blank, Term, leaves
from zerosim.observe.record import Message

USES: dict[str, Sequence[Kind]] = {
    "forward": ("parameters",), "loss": (), "backward": ("parameters", "gradients"), "update": MODEL_STATES}
"""The computations of a step, and the kinds of states of its unit that each reads or writes."""


@dataclass(frozen=True, slots=True)
class State:
    """The weights or the optimizer state of an element after so many updates."""

    element: int
    updates: int
    right: bool = True
    """Whether every update had a complete gradient, and read the state of the update before."""


LOSS = -1
"""The element of losses."""


class Held(NamedTuple):
    """The contents of a rank's cells, None where it holds nothing, the bytes of its arrays by kind, and its loss."""

    cells: tuple[Any, ...]
    held_bytes: dict[Kind, int]
    loss: Any


@dataclass(frozen=True)
class Moment:
    """What every rank holds after a moment, and the messages that made it.

    `round` counts from 1 in a collective of `rounds`; a computation has one. `freed` says that arrays were released
    after the event; then there is no round.
    """

    what: str
    unit: str
    round: int
    rounds: int
    ranks: list[Held]
    messages: list[Message] = field(default_factory=list)

    @property
    def freed(self) -> bool:
        return not self.round

    @property
    def ends(self) -> bool:
        """Whether its event is over."""
        return 0 < self.round == self.rounds

    @property
    def uses(self) -> Sequence[Kind]:
        """The kinds of states of its unit that a computation reads or writes."""
        return USES.get(self.what, ()) if self.round else ()


@dataclass(frozen=True)
class Contents:
    """The moments of a step, the first before it begins. A row of cells is a kind and a unit, a column a chunk."""

    size: int
    block: int
    """The micro-batches of a rank."""
    units: Sequence[str]
    sharded: Sequence[Kind]
    owned: Sequence[Sequence[int]]
    secondary: Sequence[Sequence[int]]
    """The chunks that each rank owns, and those of its second shard of the weights."""
    slots: Sequence[str]
    """The slots of the optimizer state."""
    element_bytes: Sequence[int]
    updates: int
    """The number of updates after the step."""
    moments: list[Moment]

    @cached_property
    def rows(self) -> list[tuple[Kind, str]]:
        return [(kind, unit) for kind in MODEL_STATES for unit in self.units]

    def element(self, cell: int) -> int:
        """The element that belongs in a cell."""
        return cell % (self.size * len(self.units))

    def wrong(self, cell: int, content: Any) -> bool:
        """Whether a cell holds what never belongs there: another chunk, a contribution twice, or a wrong update."""
        if content is None or isinstance(content, Blank):
            return False
        if isinstance(content, State):
            return not content.right or content.element != self.element(cell)
        terms = [*leaves(content)]
        return len({*terms}) < len(terms) or any(
            not isinstance(leaf, Term) or leaf.element != self.element(cell) for leaf in terms)

    def ends_wrong(self, rank: int, cell: int) -> bool:
        """Whether a rank ends the step without what its stage keeps in a cell, a complete sum or the last update, or
        with another's chunk of a sharded state, which it should have freed."""
        kind, chunk = self.rows[cell // self.size][0], cell % self.size
        content = self.moments[-1].ranks[rank].cells[cell]
        sharded = "optimizer" if kind == "gradients" else kind    # Stage I keeps gradients in full, and reduces its own
        if sharded in self.sharded and chunk not in self.owned[rank]:
            secondary = kind == "parameters" and chunk in self.secondary[rank]
            return content is not None and kind in self.sharded and not secondary
        if kind == "gradients":
            return content is None or not complete(content, self.element(cell), self.size * self.block)
        return not isinstance(content, State) or content.updates != self.updates

    def wrong_losses(self, rank: int) -> Iterator[bool]:
        """For each moment whether a rank's loss lacks one that was added before; nothing if the last one is right."""
        losses = [Counter[Any](leaves(moment.ranks[rank].loss)) for moment in self.moments]
        due = Counter(Term(rank * self.block + number, LOSS) for number in range(self.block))
        before = Counter[Any]()
        for number, loss in enumerate(losses if losses[-1] != due else ()):
            yield bool(before - loss) or max(loss.values()) > 1 or number == len(losses) - 1
            before |= Counter({term: count for term, count in loss.items() if isinstance(term, Term)})

    def sent_bytes(self, message: Message) -> int:
        elements = [self.element(cell) for cell in message.outgoing or message.into]
        return sum(self.element_bytes[element] for element in elements)


def complete(content: Any, element: int, micro_batches: int) -> bool:
    """Whether a gradient has the contribution of every micro-batch once.

    >>> complete(Term(1, 5) + Term(0, 5), 5, 2), complete(Term(1, 5) + Term(1, 5), 5, 2)
    (True, False)
    """
    return Counter(leaves(content)) == Counter(Term(number, element) for number in range(micro_batches))
