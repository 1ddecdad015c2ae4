"""What one rank trains with, and the model states that its stage keeps there.

A flat buffer is full (one unit, padded, as `sharding` cuts it) or a shard (this rank's chunk of it). Which of the two
stands in `weights`, `gradients` and `optimizer` between steps is all that tells the stages apart; the files beside
this one say it, in the verbs defined here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from zerosim.allocation import Allocator, Array, Kind
from zerosim.autograd.tape import Tape, Total
from zerosim.comm import Communicator, Payload
from zerosim.model import Unit
from zerosim.sharding import padded, split

AllGather = Callable[[Communicator, Sequence[Payload]], None]
Rule = Callable[[Array, Array, Mapping[str, Array], int], None]
"""`rule(weights, gradient, state, step)`: one optimizer step in place, element by element."""


Initial = Callable[[Unit], Array]
"""A unit's weights before the first step, unpadded."""


@dataclass(frozen=True)
class Batch:
    """This rank's micro-batches of step `step` (the first is 1), and the samples in the batch of all ranks."""

    step: int
    inputs: list[Array]
    targets: list[Array]
    samples: int


@dataclass(eq=False)
class Replica:
    """One rank's tools, and its model states, a buffer for each unit."""

    comm: Communicator
    units: Sequence[Unit]
    loss: str
    tape: Tape
    rule: Rule
    slots: Sequence[str]
    allocate: Allocator
    scatter_sums: Callable[[Communicator, Total], Array]
    gather_chunks: AllGather

    weights: dict[Unit, Array] = field(default_factory=dict)
    gradients: dict[Unit, Array] = field(default_factory=dict)
    optimizer: dict[Unit, dict[str, Array]] = field(default_factory=dict)

    def full(self, unit: Unit, kind: Kind) -> Array:
        """An uninitialised full buffer."""
        count = padded(unit.count, self.comm.size)
        return self.allocate(count, np.float32, kind=kind, owner=unit.name)

    def filled(self, unit: Unit, values: Array) -> Array:
        """A full buffer of weights that holds `values`; its padding is zero."""
        full = self.full(unit, "parameters")
        full[: unit.count] = values
        full[unit.count :] = 0
        return full

    def own(self, full: Array) -> Array:
        """This rank's chunk of a full buffer: a view."""
        own: Array = split(full, self.comm.size)[self.comm.rank]
        return own

    def shard(self, unit: Unit, full: Array, kind: Kind) -> Array:
        """This rank's chunk of a full buffer: a copy, which does not keep the rest alive."""
        own = self.own(full)
        shard = self.allocate(len(own), own.dtype, kind=kind, owner=unit.name)
        shard[:] = own
        return shard

    def reduce_scatter(self, gradient: Total) -> Array:
        """Add the ranks' gradients of one unit: in the full buffer returned, this rank's chunk is the sum."""
        return self.scatter_sums(self.comm, gradient)

    def all_gather(self, full: Array) -> Array:
        """Fill a full buffer from the chunk that each rank owns of it."""
        self.gather_chunks(self.comm, split(full, self.comm.size))
        return full

    def fresh_state(self, unit: Unit, weights: Array) -> dict[str, Array]:
        """The optimizer state before the first step that belongs to `weights`, full or a shard."""
        state = {}
        for slot in self.slots:
            state[slot] = self.allocate(len(weights), weights.dtype, kind="optimizer", owner=unit.name)
            state[slot][:] = 0
        return state

    def update(self, unit: Unit, weights: Array, gradient: Array, step: int) -> None:
        """One optimizer step on as much of `unit` as this rank keeps the state of."""
        self.rule(weights, gradient, self.optimizer[unit], step)
