"""One rank of a pipeline: each rank has some of the layers, and micro-batches pass from one rank to the next.

    piece        neighbouring units; with several model chunks a rank has pieces i, i + p, i + 2p, … of p ranks
    activation   the output of a piece for one micro-batch, which is sent to the rank of the next piece
    gradient     ∂L/∂input of a piece, which is sent to the rank of the piece before

A schedule is a list of passes (`schedules`); `step` runs it, and each pass receives and sends what it must. Tied
embeddings have a gradient on the first and on the last rank; the two are added once a step, after the sums over the
data ranks. A send never waits, so no schedule has to pair sends with receives. With two ranks and several chunks,
activations and gradients go the same way, without tags: both sides have them in the same order, by a law of schedules
(`tests/stages/test_pipeline.py`).

Each micro-batch has a tape of its own from its first forward to its last backward. The data direction is that of DDP or
of ZeRO Stage I or II, in the verbs of `replica`; their code is that of the stages, for one unit. Stage III would gather
the weights of every piece again for every micro-batch, 2 m times a step, so it is refused.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate
from typing import Any, Protocol

import numpy as np

from zerosim.autograd.tape import Policy, Tape, Total
from zerosim.core.allocation import Array
from zerosim.core.errors import UsageError
from zerosim.core.extents import Extent, extent
from zerosim.models.units import Model, Unit, runs_of
from zerosim.stages.replica import Batch, Replica
from zerosim.stages.schedules import RankSchedule, Slot


class Neighbours(Protocol):
    """The ranks of a pipeline; the last is before the first. An `activation` is sent to the next, a `gradient` back."""

    @property
    def size(self) -> int: ...
    @property
    def place(self) -> int: ...
    def send(self, what: str, array: Array, /) -> None: ...
    def recv(self, what: str, into: Array, /) -> None: ...
    def add_over_ends(self, array: Array, /) -> None: ...


@dataclass(frozen=True)
class Chunk:
    """A piece of the model on a rank; `given` and `output` have the shape and dtype of a micro-batch at its ends."""

    units: Sequence[Unit]
    given: Any
    output: Any
    first: bool
    last: bool


@lru_cache
def pieces(units: tuple[tuple[int, ...], ...], count: int, layers: tuple[int, ...] = ()) -> list[range]:
    """The numbers of the runs of neighbouring layers of units in each of `count` pieces: as equal as can be, or with so
    many layers each.

    `units` has the numbers of each unit's layers; one may have the first layers and the last. Raises `UsageError` for
    pieces without a run, for numbers of layers that do not add up or cut a run, and for other units of several runs.

    >>> pieces(((0,), (1,), (2, 3), (4,)), 2), pieces(((0,), (1,), (2, 3), (4,)), 2, layers=(1, 4))
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
    _splits: bool = False
    """Whether backward is split."""
    _tapes: dict[int, Tape] = field(default_factory=dict)
    _outputs: dict[int, list[Array]] = field(default_factory=dict)
    """The outputs of the last piece, until the loss is computed from them."""
    _unreduced: list[tuple[Unit, Total]] = field(default_factory=list)
    _loss: Total = None

    def step(self, schedule: RankSchedule, batch: Batch) -> Total:
        """One step: update all weights; this rank's part of the loss, None if it does not have the last piece."""
        parts = self.begin(batch)
        slots = schedule(self.neighbours.place, self.neighbours.size, len(parts), len(self.chunks))
        self._splits = any(slot.what == "W" for slot in slots)
        for slot in slots:
            self.run(slot.what, parts[slot.micro_batch], slot.chunk)
        return self.update()

    def begin(self, batch: Batch) -> list[Batch]:
        """Begin a step, and return its micro-batches in order."""
        self.replica.zero_grad(batch)
        self.passes.clear()
        self._loss = None
        return list(self.replica.parts(batch))

    def run(self, what: str, part: Batch, chunk: int) -> None:
        """A pass: receive what it needs from a neighbour, compute, and send its result on."""
        result = self.compute(what, part, chunk, self.receive(what, part, chunk))
        self.send(what, part, chunk, result)

    def receive(self, what: str, part: Batch, chunk: int) -> list[Array]:
        """The input of a chunk, or ∂L/∂output if a neighbour has it."""
        here = self.chunks[chunk]
        if what == "F" and here.first:
            return part.inputs
        if what == "W" or (what == "B" and here.last):
            return []
        expected, name = (here.given, "activation") if what == "F" else (here.output, "gradient")
        arrived = self.replica.allocate(expected.shape, expected.dtype, kind="activations", owner="pipeline")
        self.neighbours.recv(name, arrived)
        return [arrived]

    def compute(self, what: str, part: Batch, chunk: int, given: list[Array]) -> list[Array]:
        """The output of a chunk, or ∂L/∂input; backward of its weights has no result."""
        here = self.chunks[chunk]
        if part.first not in self._tapes:
            self._tapes[part.first] = self.another_tape(part.first)
        tape = self._tapes[part.first]
        self.passes.append(Slot(what, part.first, chunk))
        if what == "F":
            for unit in here.units:
                given = tape.forward(unit, self.replica.state.weights[unit], given)
            return given
        if what == "B" and here.last:
            self._loss, given = tape.loss(
                self.replica.loss_name, self._outputs.pop(part.first), part.targets, part.counted, self._loss)
        for unit in reversed(here.units):
            given = self._backward(what, part, tape, unit, given)
        if chunk == 0 and (what == "W" or not self._splits):
            del self._tapes[part.first]
        return given

    def _backward(self, what: str, part: Batch, tape: Tape, unit: Unit, upstream: list[Array]) -> list[Array]:
        """∂L/∂input of a unit, whose gradient is added to those of earlier micro-batches, or only one of the two.

        Gradients are reduced during the backward of the next unit if the scenario requests overlap, and otherwise once
        ∂L/∂input has been sent. The reductions of earlier micro-batches, if there are any, do not wait for that.
        """
        replica, weights = self.replica, self.replica.state.weights[unit]
        if what == "B":
            tape.recompute(unit, weights)
        if what == "B" and self._splits:
            return tape.backward_input(unit, weights, upstream)
        if what == "W":
            gradient = tape.backward_weights(unit, weights, replica.unreduced)
        else:
            upstream, gradient = tape.backward(unit, weights, upstream, replica.unreduced)
        replica.wait_for_reduction()
        self._unreduced.append((unit, replica.at_boundary(part, unit, gradient)))
        del gradient
        if replica.overlap is not None or not part.last:
            self._reduce()
        return upstream

    def send(self, what: str, part: Batch, chunk: int, result: list[Array]) -> None:
        """Send the result of a pass on; the output of the last piece stays until its loss is computed."""
        here = self.chunks[chunk]
        if what == "F" and here.last:
            self._outputs[part.first] = result
        elif what == "F":
            self.neighbours.send("activation", result[0])
        elif what == "B" and not here.first:
            self.neighbours.send("gradient", result[0])
        if what != "F":
            self._reduce()
            self.replica.wait_for_reduction()

    def _reduce(self) -> None:
        """Reduce the gradients of the units whose backward has ended, as the stage of the data direction does."""
        replica, sharded = self.replica, self.replica.state.placement.sharded
        while self._unreduced:
            unit, gradient = self._unreduced.pop(0)
            if not sharded:
                replica.keep(unit, replica.all_gather(unit, replica.reduce_scatter(unit, gradient)))    # DDP
            elif "gradients" in sharded:
                replica.keep_shard(unit, replica.reduce(unit, gradient))                                # Stage II
            else:
                replica.keep(unit, replica.reduce(unit, gradient))                                      # Stage I

    def update(self) -> Total:
        """Update all weights; this rank's part of the loss.

        Before that, add the gradient of a unit that the first and the last rank share: embeddings, and tied to them the
        outputs.
        """
        for unit in self.replica.units:
            for gradient in () if unit.end is None else self.replica.sums(unit):
                self.neighbours.add_over_ends(gradient)
        self.replica.unscale_and_clip()
        for unit, weights in self.replica.state.weights.items():
            if "optimizer" in self.replica.state.placement.sharded:
                self.replica.update(unit, self.replica.own(weights))
                self.replica.publish(unit, weights)
            else:
                self.replica.update(unit, weights)
        return self._loss


def chunks_of(
    model: Model, count: int, layers: tuple[int, ...], micro_batch: int, dtype: np.dtype[Any], policy: Policy
) -> list[Chunk]:
    """The pieces of a model in the order of its layers, for micro-batches of so many samples and weights of `dtype`.

    >>> from zerosim.autograd.tape import as_written
    >>> from zerosim.models.mlp import mlp
    >>> model = mlp(4, [8, 6], 2, "relu", "cross_entropy")
    >>> [chunk.output for chunk in chunks_of(model, 2, (1, 2), 16, np.dtype(np.float32), as_written)]
    [Extent((16, 8), float32), Extent((16, 2), float32)]
    """
    task, units = model.task, [
        unit if len(unit.segments) == 1 else replace(unit, end=unit.segments.index(segment))
        for unit, segment in model.segments]
    shape, tape = (micro_batch, task.inputs), Tape(extent, lowest=len(model.layers), policy=policy)
    ends: list[Any] = [np.zeros(shape, np.int64) if task.tokens else Extent(shape, dtype)]
    outputs: dict[Any, Any] = {}      # equal segments have equal outputs for equal inputs
    for unit in units:
        weights: Any = Extent(unit.count, dtype)
        alike = unit.segments[0].computation, ends[-1].shape, ends[-1].dtype
        outputs[alike] = outputs.get(alike) or tape.forward(unit, weights, ends[-1:])
        ends += outputs[alike]
    cuts = pieces(tuple(unit.numbers for unit in model.units), count, layers)
    return [Chunk([units[number] for number in cut], ends[cut.start], ends[cut.stop], cut.start == 0, cut is cuts[-1])
            for cut in cuts]
