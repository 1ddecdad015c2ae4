"""The tape: runs units forward and then, last unit first, backward, for all micro-batches of one pass.

    segment      a run of neighbouring layers of one unit
    total        the gradients of a rank's micro-batches added so far
    recompute    keep a unit's input, and results that a rule selects, and run the rest forward again before backward

Between forward and backward the tape keeps the arrays that backward needs and nothing else. It never holds weights:
they are passed twice, once for each direction, so a caller that drops them in between really frees them. Stage III
depends on that.

Micro-batches that are passed together all stay alive until backward. That gathers each unit once per pass and reduces
it once per step, at the price of their activations. A stage with DeepSpeed's order calls the tape once for each
micro-batch instead.

Backward may be split, as zero-bubble pipelines do: `backward_input`, and any time later `backward_weights`, which adds
up the same products in the same order. In between the tape keeps what the latter reads: inputs of operations with
weights, and ∂L/∂output of these operations.

A unit with several segments (tied embeddings) contributes to its gradient in each of them. The gradient of a
micro-batch is complete at the unit's first layer; until then `backward` returns None for it and the tape keeps the
sum, later use first. The declared order of addition includes that.

`recompute` stands in the stages' code before `backward` and does nothing unless the unit requires it. Stage III
passes the weights that it has gathered for backward, so nothing is gathered twice. `recompute = true` includes the
head, whose forward is then repeated for nothing: one rule was preferred to an exception.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from zerosim.autograd.graph import GraphPlan, Instruction, Step
from zerosim.autograd.operation import Shape
from zerosim.autograd.operations.dropout import Draws
from zerosim.autograd.operations.losses import LOSSES
from zerosim.autograd.player import Contribution, Kept, Perform, Player, Precise, perform
from zerosim.autograd.selection import SelectedPlan
from zerosim.autograd.shelf import Shelf, Taken, in_memory
from zerosim.autograd.tape_collectives import Direction
from zerosim.core.allocation import Allocator, Array, allocate
from zerosim.core.errors import CollectiveError


class TapeSegment(Protocol):
    """The interface of a segment of a unit: neighbouring layers that are run one after the other."""

    @property
    def first_layer(self) -> int: ...
    @property
    def last_layer(self) -> int: ...
    def plan(self, shape: Shape, /, *, of_parameters: bool, of_input: bool) -> GraphPlan: ...


class TapeUnit(Hashable, Protocol):
    """The interface of a unit: one flat buffer of `count` elements, seen as numbered parameters, and its segments."""

    @property
    def name(self) -> str: ...
    @property
    def count(self) -> int: ...
    @property
    def frozen(self) -> bool: ...
    @property
    def segments(self) -> Sequence[TapeSegment]: ...
    def parts(self, flat: Array, /) -> Mapping[int, Array]: ...


Total = Any
"""The value of an `Accumulate` for the contributions so far: an array, or any object that its order needs."""

Accumulate = Callable[[Total, Array], Total]
"""`accumulate(total, contribution)` gives the new total; the first total is None."""

Draw = Callable[[Array, int, int, int], None]
"""`draw(array, micro_batch, layer, operation)` fills an array (samples, …) with random numbers."""


def left_to_right(total: Array | None, contribution: Array) -> Array:
    """((g₀ + g₁) + g₂) + …, in the memory of g₀."""
    if total is None:
        return contribution
    total += contribution
    return total


Policy = Callable[[GraphPlan, np.dtype[Any]], GraphPlan]
"""`policy(plan, dtype)` gives the plan of a segment's input of this dtype, with a dtype for each value."""


def as_written(plan: GraphPlan, dtype: np.dtype[Any]) -> GraphPlan:
    """The plan itself: every value has the dtype of the weights."""
    return plan


def check_weights(what: str, unit: TapeUnit, weights: Array) -> None:
    """Refuse weights with fewer elements than the unit, and what is no array."""
    if not hasattr(weights, "dtype"):
        raise CollectiveError(f"{what} of {unit.name} got a {type(weights).__name__} as weights; give the unit's "
                              "array, such as replica.state.weights[unit]")
    if len(weights) < unit.count:
        raise CollectiveError(
            f"{what} of {unit.name} got {len(weights)} elements, but its weights have {unit.count}: a shard was used "
            "where full weights are needed; a stage that keeps shards gathers them, replica.gather(unit), and any "
            "other keeps them in full, replica.state.weights[unit]"
        )


@dataclass(eq=False)
class Passed:
    """A segment that has run forward: what is kept of each micro-batch, and the inputs if it will be recomputed."""

    segment: TapeSegment
    kept: list[Kept]
    inputs: Taken | None = None


@dataclass(eq=False)
class Tape:
    """One step's activations, for each of this rank's micro-batches.

    `allocate` allocates every array as large as an activation or a gradient. `accumulate` folds the contributions of
    micro-batches, first to last, to the loss and to each unit's gradient. Layers below `lowest` and frozen units need
    no gradient. `draw` draws dropout's numbers; without it nothing is dropped. For the units in `recomputed` the input
    is kept, on `shelf`, except that of layer 0, which the caller holds; `keeps` names a rule of `SELECTIONS` for
    further kept results. `policy` chooses a dtype for each value; without it that is the dtype of the weights. Outputs
    are cast to `output_dtype`, if given, before the loss; of a split model they are pieces, cut over the directions in
    `loss_over`, see `cross_entropy`. `perform` runs each operation.

    Arrays of 16 bits are for keeping and sending: every operation widens them, computes in float32 and rounds.
    Gradients may be scaled by `loss_scale`, so that small ones do not vanish in 16 bits; the loss itself is not
    scaled.

    A gradient that has several terms adds them in the order of backward: the last use comes first.

    >>> import numpy as np
    >>> from zerosim.models.mlp import mlp
    >>> (unit,), tape = mlp(2, [], 1, "relu", "mean_squared_error").units, Tape()
    >>> weights = np.array([1.0, 2.0, 0.5])         # W = [[1, 2]], b = [0.5]
    >>> outputs = tape.forward(unit, weights, [np.array([[1.0, 1.0]])])
    >>> loss, upstreams = tape.loss("mean_squared_error", outputs, [np.array([[1.5]])], count=1)
    >>> float(loss[0]), tape.backward(unit, weights, upstreams)
    (4.0, ([], array([4., 4., 4.])))
    """

    allocate: Allocator = allocate
    accumulate: Accumulate = left_to_right
    lowest: int = 0
    draw: Draw | None = None
    recomputed: Collection[TapeUnit] = ()
    shelf: Shelf = in_memory
    perform: Perform = perform
    output_dtype: Any = None
    keeps: str = ""
    policy: Policy = as_written
    loss_over: Mapping[str, Direction] = field(default_factory=dict)
    loss_scale: float = 1.0
    first_micro_batch: int = 0
    """The number of the first passed micro-batch in the batch of all ranks."""
    operations: Counter[str] = field(default_factory=Counter)
    """The floating-point operations of matrix products so far: in forward, backward and recomputation."""
    _selections: dict[GraphPlan, SelectedPlan] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._begun = Counter[TapeUnit]()
        self._passed: defaultdict[TapeUnit, list[Passed]] = defaultdict(list)
        """The segments that have not run backward; the last runs first."""
        self._without_weights: defaultdict[TapeUnit, list[Passed]] = defaultdict(list)
        """The segments that `backward_input` has run, and `backward_weights` has not."""
        self._contributions: dict[TapeUnit, list[Contribution]] = {}

    def another(self, micro_batch: int) -> "Tape":
        """A tape with these settings for one micro-batch between others; their operations count together."""
        return replace(self, shelf=in_memory, first_micro_batch=micro_batch)

    def forward(self, unit: TapeUnit, weights: Array, activations: Sequence[Array]) -> list[Array]:
        """The unit's outputs, one array for each micro-batch, samples first.

        `weights` is the unit's flat buffer, `unit.count` elements and any padding. Each call runs the unit's next
        segment.
        """
        if activations:
            check_weights("forward", unit, weights)
        segment = unit.segments[self._begun[unit] % len(unit.segments)]
        self._begun[unit] += 1
        again, outputs, kept = unit in self.recomputed, list[Array](), list[Kept]()
        for number, x in enumerate(activations):
            plan = self._plan(unit, segment, x)
            plan = self._selected(plan).forward if again else plan
            y, keep = self._player(unit, segment, plan, weights, number).forward(x)
            self.operations["forward"] += sum(step.forward_operations for step in plan.steps)
            outputs.append(y)
            kept.append(keep)
        if segment.last_layer >= self.lowest:
            shelf = self.shelf if segment.first_layer else in_memory
            self._passed[unit].append(Passed(segment, kept, shelf(unit.name, activations) if again else None))
        return outputs

    def recompute(self, unit: TapeUnit, weights: Array) -> None:
        """Run the last segment of the unit forward again, before its backward, if only its input was kept."""
        if unit not in self.recomputed:
            return
        passed = self._passed[unit][-1]
        assert passed.inputs is not None
        activations, passed.inputs = passed.inputs(), None
        given, passed.kept = passed.kept, []
        for number, x in enumerate(activations):
            plan = self._plan(unit, passed.segment, x)
            steps, player = self._selected(plan).again, self._player(unit, passed.segment, plan, weights, number)
            passed.kept.append(player.again(x, steps, given.pop(0)))
            self.operations["recomputation"] += sum(step.forward_operations for step in steps)

    def loss(
        self, name: str, outputs: Sequence[Array], targets: Sequence[Array], count: int, total: Total = None
    ) -> tuple[Total, list[Array]]:
        """The loss, added to `total` if given, and ∂L/∂output for each micro-batch.

        `name` is a key of `LOSSES`. `count` is the number of targets that count in the step, over all ranks, as
        `Batch.counted` has it: each micro-batch is scaled by its inverse, so nothing is divided after the sum.
        """
        upstreams, precise = [], Precise(self.allocate, "loss")
        for output, target in zip(outputs, targets, strict=True):
            cast = precise.rounded(output, self.output_dtype or output.dtype)
            dtype, wide = cast.dtype, precise.widened(cast)
            del cast
            contribution, upstream = self.perform(
                None, LOSSES[name], wide, target, count, empty=precise.empty, **self.loss_over)
            del wide
            if self.loss_scale != 1.0:
                upstream *= self.loss_scale
            upstreams.append(precise.rounded(precise.rounded(upstream, dtype), output.dtype))
            del upstream
            total = self.accumulate(total, contribution)
        return total, upstreams

    def backward(
        self, unit: TapeUnit, weights: Array, upstreams: list[Array],
        earlier: MutableMapping[Any, Total] | None = None,
    ) -> tuple[list[Array], Total]:
        """∂L/∂input for each micro-batch, and ∂L/∂weights: flat, as long as `weights`, padding 0.

        The gradient is added to that of earlier micro-batches in `earlier`, from which it is removed.

        Segments are run in reverse order of forward. `upstreams` holds ∂L/∂output; it is emptied, so
        afterwards the tape holds nothing of the segment. The list is empty for the lowest trained
        unit, since no gradient is computed below it. The gradient is None for a frozen unit, and for a unit with
        segments still to run.
        """
        passed, inputs = self._last_passed(unit, weights, upstreams), list[Array]()
        return inputs, self._gradient(unit, passed, weights, earlier, lambda plan: plan.steps[::-1], upstreams, inputs)

    def backward_input(self, unit: TapeUnit, weights: Array, upstreams: list[Array]) -> list[Array]:
        """∂L/∂input for each micro-batch, as `backward` returns it, without ∂L/∂weights."""
        passed, inputs = self._last_passed(unit, weights, upstreams), list[Array]()
        for number, kept in enumerate(passed.kept):
            player, (steps, _) = self._player(unit, passed.segment, kept.plan, weights, number), kept.plan.split
            inputs += player.backward(kept, upstreams.pop(0), None, steps)
            self.operations["backward"] += sum(step.backward_operations for step in steps)
        self._without_weights[unit].append(passed)
        return inputs

    def backward_weights(
        self, unit: TapeUnit, weights: Array, earlier: MutableMapping[Any, Total] | None = None
    ) -> Total:
        """∂L/∂weights as `backward` returns it, of the first segment whose `backward_input` has run."""
        passed = self._without_weights[unit].pop(0)
        return self._gradient(unit, passed, weights, earlier, lambda plan: plan.split[1], [], [])

    def _last_passed(self, unit: TapeUnit, weights: Array, upstreams: Sequence[Array]) -> Passed:
        """The last segment of the unit that has not been run backward."""
        check_weights("backward", unit, weights)
        if not self._passed[unit]:
            raise CollectiveError(
                f"backward of {unit.name}: forward has not run for it. Run each unit forward first, and backward once "
                f"per forward"
            )
        passed = self._passed[unit].pop()
        if len(upstreams) != len(passed.kept):
            raise CollectiveError(
                f"backward of {unit.name} got {len(upstreams)} upstream arrays, and forward had {len(passed.kept)} "
                "micro-batches: pass what backward of the next unit returned, or for the last unit what tape.loss "
                "returned"
            )
        return passed

    def _gradient(
        self, unit: TapeUnit, passed: Passed, weights: Array, earlier: MutableMapping[Any, Total] | None,
        steps_of: Callable[[GraphPlan], Sequence[Step]], upstreams: list[Array], inputs: list[Array],
    ) -> Total:
        """∂L/∂weights once the unit's last segment is run; ∂L/∂input of each micro-batch is appended to `inputs`."""
        ends = not (self._passed[unit] or self._without_weights[unit])
        begun = self._contributions.pop(unit, [])
        unfinished: list[Contribution] = []
        total: Total = earlier.pop(unit, None) if ends and earlier else None
        for number in range(len(passed.kept)):
            kept, contribution = passed.kept.pop(0), None
            if not unit.frozen:
                contribution = begun.pop(0) if begun else self._contribution(unit, weights)
            player, steps = self._player(unit, passed.segment, kept.plan, weights, number), steps_of(kept.plan)
            inputs += player.backward(kept, upstreams.pop(0) if upstreams else None, contribution, steps)
            self.operations["backward"] += sum(step.backward_operations for step in steps)
            if contribution is None:
                continue
            if ends:
                total = self.accumulate(total, contribution.finished())
            else:
                unfinished.append(contribution)
            del contribution  # before the next one is allocated: at most two are alive
        if unfinished:
            self._contributions[unit] = unfinished
        return total

    def _plan(self, unit: TapeUnit, segment: TapeSegment, x: Array) -> GraphPlan:
        """The plan of a segment for the gradients that this tape computes of it."""
        keeps = segment.last_layer >= self.lowest
        plan = segment.plan(
            x.shape, of_parameters=keeps and not unit.frozen, of_input=keeps and segment.first_layer > self.lowest)
        return self.policy(plan, x.dtype)

    def _selected(self, plan: GraphPlan) -> SelectedPlan:
        """The plan with the results that this tape's rule keeps."""
        return self._selections.setdefault(plan, SelectedPlan(plan, self.keeps))

    def _player(self, unit: TapeUnit, segment: TapeSegment, plan: GraphPlan, weights: Array, number: int) -> Player:
        draw, micro_batch = self.draw, self.first_micro_batch + number

        def draws(instruction: Instruction) -> Draws | None:
            layer = segment.first_layer + instruction.layer
            return None if draw is None else lambda array: draw(array, micro_batch, layer, instruction.number)

        return Player(plan, unit.parts(weights), Precise(self.allocate, unit.name), draws, self.perform)

    def _contribution(self, unit: TapeUnit, weights: Array) -> Contribution:
        flat = self.allocate(weights.shape, weights.dtype, kind="gradients", owner=unit.name)
        flat[unit.count :] = 0.0
        return Contribution(flat, unit.parts(flat))
