"""The verbs of a pipeline: each rank has some of the layers, and micro-batches pass from one rank to the next.

    piece        neighbouring units; with several model chunks a rank has pieces i, i + p, i + 2p, … of p ranks
    activation   the output of a piece for one micro-batch, which is sent to the rank of the next piece
    gradient     ∂L/∂input of a piece, which is sent to the rank of the piece before

The schedules (`gpipe`, `one_f_one_b`, `interleaved`, `zero_bubble`) say which micro-batch runs when; all run backward
in the order of micro-batches, so gradients add up left to right, as without a pipeline. Tied embeddings have a gradient
on the first and on the last rank; the two are added once a step, after the sums over the data ranks. A send never
waits, so no schedule has to pair sends with receives. With two ranks and several chunks, activations and gradients go
the same way, without tags: both sides have them in the same order (`tests/test_pipeline.py`).

Each micro-batch has a tape of its own from its first forward to its last backward. The data direction is that of DDP or
of ZeRO Stage I or II, in the verbs of `replica`; their code is that of the stages, for one unit. Stage III would gather
the weights of every piece again for every micro-batch, 2 m times a step, so it is refused.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

from zerosim.allocation import Array, Kind
from zerosim.autograd.tape import Tape, Total
from zerosim.errors import UsageError
from zerosim.models.units import Unit, runs_of
from zerosim.stages.replica import Batch, Replica


class Neighbours(Protocol):
    """The ranks of a pipeline; the last is before the first."""

    @property
    def size(self) -> int: ...
    @property
    def place(self) -> int: ...
    def send_activation(self, array: Array, /) -> None: ...
    def recv_activation(self, into: Array, /) -> None: ...
    def send_gradient(self, array: Array, /) -> None: ...
    def recv_gradient(self, into: Array, /) -> None: ...
    def add_over_ends(self, array: Array, /) -> None: ...


class Slot(NamedTuple):
    """A forward ("F") or backward ("B") pass of a micro-batch through a model chunk, as a rank runs them in a step.

    In a schedule that splits backward, "B" is that of the input, and "W" that of the weights.
    """

    what: str
    micro_batch: int
    chunk: int


@dataclass(frozen=True)
class Chunk:
    """A piece of the model on a rank; `given` and `output` have the shape and dtype of a micro-batch at its ends."""

    units: Sequence[Unit]
    given: Any
    output: Any
    first: bool
    last: bool


def pieces(units: Sequence[Sequence[int]], count: int, layers: Sequence[int] = ()) -> list[range]:
    """The numbers of the runs of neighbouring layers of units in each of `count` pieces: as equal as can be, or with so
    many layers each.

    `units` has the numbers of each unit's layers; one may have the first layers and the last. Raises `UsageError` for
    pieces without a run, for numbers of layers that do not add up or cut a run, and for other units of several runs.

    >>> pieces([[0], [1], [2, 3], [4]], 2), pieces([[0], [1], [2, 3], [4]], 2, layers=[1, 4])
    ([range(0, 2), range(2, 4)], [range(0, 1), range(1, 4)])
    """
    runs = sorted(run for unit in units for run in runs_of(sorted(unit)))
    for unit in units:
        ends = runs_of(sorted(unit))
        if ends[1:] and ends != [runs[0], runs[-1]]:
            raise UsageError(f"layers {list(unit)} share a unit, and would be on different ranks; let parallel.units "
                             "name neighbours, or the first layers and the last")
    if not layers:
        if count > len(runs):
            raise UsageError(f"{count} pieces need a unit of layers each, and the model has {len(runs)}; use fewer "
                             "ranks or chunks, or more layers")
        stops = list(accumulate(len(runs) // count + (number < len(runs) % count) for number in range(count)))
    else:
        after = {last: number for number, last in enumerate(accumulate(map(len, runs)), start=1)}
        wanted = list(accumulate(layers))
        if len(layers) != count or wanted[-1] != max(after) or not set(wanted) <= set(after):
            raise UsageError(f"{list(layers)} must give each of {count} pieces its number of layers, {max(after)} in "
                             "all, and cut no unit")
        stops = [after[stop] for stop in wanted]
    return [range(start, stop) for start, stop in zip([0, *stops], stops, strict=False)]


@dataclass(eq=False)
class Pipeline:
    """One rank of a pipeline: its replica, which has the units of its chunks, and its neighbours."""

    replica: Replica
    neighbours: Neighbours
    chunks: Sequence[Chunk]
    another_tape: Callable[[int], Tape]
    """Makes the tape of a micro-batch."""
    passes: list[Slot] = field(default_factory=list)
    """The passes of this rank in the last step, in order."""
    _tapes: dict[int, Tape] = field(default_factory=dict)
    _outputs: dict[int, list[Array]] = field(default_factory=dict)
    _unreduced: list[tuple[Unit, Total]] = field(default_factory=list)
    _loss: Total = None

    @property
    def after(self) -> int:
        """The number of ranks after this one."""
        return self.neighbours.size - 1 - self.neighbours.place

    def begin(self, batch: Batch) -> list[Batch]:
        """Begin a step, and return its micro-batches in order."""
        self.replica.zero_grad(batch)
        self.passes.clear()
        self._loss = None
        return list(self.replica.parts(batch))

    def receive_activation(self, part: Batch, chunk: int = 0) -> list[Array]:
        """The input of a chunk: that of the micro-batch, or the output of the piece before."""
        here = self.chunks[chunk]
        if here.first:
            return part.inputs
        given = self._room(here.given)
        self.neighbours.recv_activation(given)
        return [given]

    def forward(self, part: Batch, activations: list[Array], chunk: int = 0) -> list[Array]:
        """The output of a chunk for one micro-batch, whose tape keeps what backward needs."""
        replica, tape = self.replica, self._tape_of(part)
        self.passes.append(Slot("F", part.first, chunk))
        for unit in self.chunks[chunk].units:
            activations = tape.forward(unit, replica.state.weights[unit], activations)
        return activations

    def send_activation(self, part: Batch, activations: list[Array], chunk: int = 0) -> None:
        """Send the output of a chunk to the next piece; that of the last piece stays until its loss is computed."""
        if self.chunks[chunk].last:
            self._outputs[part.first] = activations
        else:
            self.neighbours.send_activation(activations[0])

    def receive_gradient(self, part: Batch, chunk: int = 0) -> list[Array]:
        """∂L/∂output of a chunk: from the loss, or from the next piece."""
        here = self.chunks[chunk]
        if here.last:
            outputs, replica = self._outputs.pop(part.first), self.replica
            self._loss, upstream = self._tape_of(part).loss(
                replica.loss_name, outputs, part.targets, part.samples, self._loss)
            return upstream
        upstream = [self._room(here.output)]
        self.neighbours.recv_gradient(upstream[0])
        return upstream

    def backward(self, part: Batch, upstream: list[Array], chunk: int = 0) -> list[Array]:
        """∂L/∂input of a chunk; the gradients of its units are kept, and reduced with the last micro-batch.

        They are reduced beside the backward of the next unit if the scenario requests overlap, and otherwise once
        ∂L/∂input has been sent. The reductions of earlier micro-batches, if there are any, do not wait for that.
        """
        replica, tape = self.replica, self._tape_of(part)
        self.passes.append(Slot("B", part.first, chunk))
        for unit in reversed(self.chunks[chunk].units):
            weights = replica.state.weights[unit]
            tape.recompute(unit, weights)
            upstream, gradient = tape.backward(unit, weights, upstream, replica.unreduced)
            replica.wait_for_reduction()
            self._unreduced.append((unit, replica.at_boundary(part, unit, gradient)))
            del gradient
            self._reduce_beside(part)
        if chunk == 0:
            del self._tapes[part.first]
        return upstream

    def backward_input(self, part: Batch, upstream: list[Array], chunk: int = 0) -> list[Array]:
        """∂L/∂input of a chunk; what the gradients of its units need is kept until `backward_weights`."""
        tape, weights = self._tape_of(part), self.replica.state.weights
        self.passes.append(Slot("B", part.first, chunk))
        for unit in reversed(self.chunks[chunk].units):
            tape.recompute(unit, weights[unit])
            upstream = tape.backward_input(unit, weights[unit], upstream)
        return upstream

    def backward_weights(self, part: Batch, chunk: int = 0) -> None:
        """Add the gradients of a chunk's units, after `backward_input`; they are reduced with the last micro-batch."""
        replica, tape = self.replica, self._tape_of(part)
        self.passes.append(Slot("W", part.first, chunk))
        for unit in reversed(self.chunks[chunk].units):
            gradient = tape.backward_weights(unit, replica.state.weights[unit], replica.unreduced)
            replica.wait_for_reduction()
            self._unreduced.append((unit, replica.at_boundary(part, unit, gradient)))
            del gradient
            self._reduce_beside(part)
        if chunk == 0:
            del self._tapes[part.first]
        self._reduce()
        replica.wait_for_reduction()

    def send_gradient(self, part: Batch, upstream: list[Array], chunk: int = 0) -> None:
        """Send ∂L/∂input of a chunk to the piece before; nothing precedes the first."""
        if not self.chunks[chunk].first:
            self.neighbours.send_gradient(upstream[0])
        self._reduce()
        self.replica.wait_for_reduction()

    def _reduce_beside(self, part: Batch) -> None:
        """Reduce gradients before the backward of the next unit, unless that delays ∂L/∂input."""
        if self.replica.overlap is not None or not part.last:
            self._reduce()

    def _reduce(self) -> None:
        """Reduce the gradients of the units whose backward has ended."""
        while self._unreduced:
            of_stage(self.replica).reduce(self.replica, *self._unreduced.pop(0))

    def update(self) -> Total:
        """Update all weights; this rank's part of the loss, None if it does not have the last piece.

        Before that, add the gradient of a unit that the first and the last rank share: embeddings, and tied to them the
        outputs.
        """
        for unit in self.replica.units:
            for gradient in () if unit.end is None else self.replica.sums(unit):
                self.neighbours.add_over_ends(gradient)
        self.replica.unscale_and_clip()
        for unit in self.replica.units:
            of_stage(self.replica).update(self.replica, unit)
        return self._loss

    def _tape_of(self, part: Batch) -> Tape:
        if part.first not in self._tapes:
            self._tapes[part.first] = self.another_tape(part.first)
        return self._tapes[part.first]

    def _room(self, like: Any) -> Array:
        return self.replica.allocate(like.shape, like.dtype, kind="activations", owner="pipeline")


def run_forward(pipeline: Pipeline, part: Batch, chunk: int = 0) -> None:
    """Receive the activation of a micro-batch, run a chunk forward, send the output on."""
    activations = pipeline.receive_activation(part, chunk)
    activations = pipeline.forward(part, activations, chunk)
    pipeline.send_activation(part, activations, chunk)


def run_backward(pipeline: Pipeline, part: Batch, chunk: int = 0) -> None:
    """Receive the gradient of the output, run a chunk backward, send that of the input back."""
    upstream = pipeline.receive_gradient(part, chunk)
    upstream = pipeline.backward(part, upstream, chunk)
    pipeline.send_gradient(part, upstream, chunk)


def run_backward_input(pipeline: Pipeline, part: Batch) -> None:
    """Receive the gradient of the output, run backward for that of the input alone, send it back."""
    upstream = pipeline.receive_gradient(part)
    upstream = pipeline.backward_input(part, upstream)
    pipeline.send_gradient(part, upstream)


ScheduleStep = Callable[[Pipeline, Batch], Total]
"""A schedule: one step, which updates weights and returns this rank's part of the loss, None without the last piece."""


@dataclass(frozen=True)
class InDataDirection:
    """The code of a stage for the gradient of one unit, and then for its weights."""

    reduce: Callable[[Replica, Unit, Total], None]
    update: Callable[[Replica, Unit], None]


def all_reduced(replica: Replica, unit: Unit, gradient: Total) -> None:
    """DDP: reduce-scatter and all-gather the gradient."""
    replica.keep(unit, replica.all_gather(unit, replica.reduce_scatter(unit, gradient)))


def reduced(replica: Replica, unit: Unit, gradient: Total) -> None:
    """Stage I: reduce-scatter the gradient."""
    replica.keep(unit, replica.reduce(unit, gradient))


def reduced_to_shard(replica: Replica, unit: Unit, gradient: Total) -> None:
    """Stage II: reduce-scatter the gradient, and free all but the shard."""
    replica.keep_shard(unit, replica.reduce(unit, gradient))


def updated(replica: Replica, unit: Unit) -> None:
    """DDP: update all weights on every rank."""
    replica.update(unit, replica.state.weights[unit])


def updated_and_published(replica: Replica, unit: Unit) -> None:
    """Stages I and II: update this rank's shard, and all-gather the weights."""
    weights = replica.state.weights[unit]
    replica.update(unit, replica.own(weights))
    replica.publish(unit, weights)


IN_DATA_DIRECTION: Mapping[frozenset[Kind], InDataDirection] = {
    frozenset(): InDataDirection(all_reduced, updated),
    frozenset({"optimizer"}): InDataDirection(reduced, updated_and_published),
    frozenset({"optimizer", "gradients"}): InDataDirection(reduced_to_shard, updated_and_published),
}
"""The stages that go with a pipeline, by the states that they shard."""


def of_stage(replica: Replica) -> InDataDirection:
    """The code of the replica's stage for one unit."""
    return IN_DATA_DIRECTION[frozenset(replica.state.layouts.sharded)]
