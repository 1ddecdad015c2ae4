"""The player: runs every operation of one segment's graph on one micro-batch, forward and backward.

It frees values by the plan that `graph.py` made, and everything else by its last reference. The planner replaces it by
a player that repeats the allocations of an earlier run of an equal segment.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from zerosim.autograd.graph import GraphPlan, Instruction, Step
from zerosim.autograd.operation import Into, Shape
from zerosim.autograd.operations.dropout import Draws
from zerosim.autograd.operations.shapes import in_one_piece
from zerosim.autograd.selection import SelectedPlan
from zerosim.core.allocation import Allocator, Array
from zerosim.core.extents import owner

FLOAT_BYTES = np.dtype(np.float32).itemsize


@dataclass(eq=False)
class Kept:
    """The arrays that backward needs of one micro-batch: values by slot, and saved arrays by their output's slot.

    Between the two parts of a split backward there are also `upstreams`: ∂L/∂y of operations with weights.
    """

    plan: GraphPlan
    values: dict[int, Array] = field(default_factory=dict)
    saved: dict[int, Array] = field(default_factory=dict)
    upstreams: dict[int, Array] = field(default_factory=dict)


@dataclass(eq=False)
class Contribution:
    """A micro-batch's gradient of a unit, and the names of the parameters whose gradients it has already."""

    flat: Array
    views: Mapping[Any, Array]
    written: set[Hashable] = field(default_factory=set)

    def finished(self) -> Array:
        """The flat gradient, 0 for unused parameters."""
        for name in self.views.keys() - self.written:
            self.views[name][...] = 0.0
        return self.flat


@dataclass(frozen=True, eq=False)
class Precise:
    """The allocator of a unit's arrays; widens arrays of 16 bits before operations, and rounds after them."""

    allocate: Allocator
    owner: str

    def empty(self, shape: Shape, dtype: Any) -> Array:
        return self.allocate(shape, dtype, kind="activations", owner=self.owner)

    def widened(self, array: Array) -> Array:
        """`array` in at least 32 bits: itself if it has them, else a copy."""
        wide = self.wide_like(array)
        if wide is not array:
            wide[...] = array
        return wide

    def wide_like(self, array: Array) -> Array:
        """`array` itself if it has 32 bits or more, else memory for as many elements of 32 bits."""
        if array.dtype.itemsize >= FLOAT_BYTES:
            return array
        return self.allocate(array.shape, np.float32, kind="buffers", owner="widened")

    def to_round(self, shape: Shape, dtype: np.dtype[Any], narrow: np.dtype[Any]) -> Array:
        """Memory for numbers computed in `dtype` and kept in `narrow`: a buffer, if `narrow` has fewer bits."""
        if dtype == narrow:
            return self.empty(shape, dtype)
        return self.allocate(shape, dtype, kind="buffers", owner="widened")

    def rounded(self, array: Array, dtype: np.dtype[Any]) -> Array:
        """`array` as `dtype`: itself, as indices always, or a rounded copy."""
        if array.dtype == dtype or array.dtype.kind == "i":
            return array
        narrow = self.empty(array.shape, dtype)
        narrow[...] = array
        return narrow


Perform = Callable[..., Any]
"""`perform(step, function, *arrays, **named)` runs one operation's forward or backward; a loss has no step."""


def perform(step: Step | None, function: Callable[..., Any], *arrays: Any, **named: Any) -> Any:
    """The result of `function` on these arrays.

    >>> perform(None, max, 1, 2)
    2
    """
    return function(*arrays, **named)


class Plays(Protocol):
    """The interface through which a tape runs a segment, see `Player`."""

    def forward(self, x: Array, /) -> tuple[Array, Kept]: ...
    def again(self, x: Array, selected: SelectedPlan, given: Kept, /) -> Kept: ...
    def backward(self, kept: Kept, upstream: Array, contribution: Contribution | None, /) -> list[Array]: ...
    def backward_input(self, kept: Kept, upstream: Array, /) -> list[Array]: ...
    def backward_weights(self, kept: Kept, contribution: Contribution | None, /) -> None: ...


Players = Callable[[GraphPlan, Mapping[Any, Array], Precise, Callable[[Instruction], Draws | None], Perform], Plays]
"""`players(plan, parameters, precise, draws, perform)` makes the player of a segment: a `Player`."""


@dataclass(eq=False)
class Player:
    """Runs a plan with parameters, by their names in its graph.

    `draws` gives an operation its random numbers, if any.
    """

    plan: GraphPlan
    parameters: Mapping[Any, Array]
    precise: Precise
    draws: Callable[[Instruction], Draws | None]
    perform: Perform = perform

    def __post_init__(self) -> None:
        graph = self.plan.graph
        self._names = {variable.slot: name for name, variable in graph.parameters.items()}

    def forward(self, x: Array) -> tuple[Array, Kept]:
        """The output, in C order as it may be sent or stored, and the arrays for backward."""
        values, kept = self._play(self.plan.steps, x, Kept(self.plan))
        return in_one_piece(values[self.plan.graph.output.slot], self.precise.empty), kept

    def again(self, x: Array, selected: SelectedPlan, given: Kept) -> Kept:
        """The arrays for backward, recomputed from the input and from the results that the first forward kept."""
        return self._play(selected.again, x, given)[1]

    def _play(self, steps: Sequence[Step], x: Array, given: Kept) -> tuple[dict[int, Array], Kept]:
        """All values that are left after these steps, and the arrays for backward."""
        graph, kept = self.plan.graph, Kept(self.plan, saved=given.saved)
        values = {graph.input.slot: x, **given.values}
        values |= {slot: self.parameters[name] for slot, name in self._names.items()}
        given.values = {}
        dtype = next(iter(self.parameters.values())).dtype if self.parameters else x.dtype
        for step in steps:
            output = step.instruction.output
            values[output], saved = self._forward(step, values, step.dtype or dtype)
            if saved is not None and step.keeps_saved:
                kept.saved[output] = saved
            del saved
            for slot in step.done:
                del values[slot]
        kept.values = {slot: values[slot] for slot in self.plan.kept}
        return values, kept

    def _forward(self, step: Step, values: dict[int, Array], dtype: np.dtype[Any]) -> tuple[Array, Array | None]:
        """One operation's output and its saved array, in the precision `dtype`."""
        operation, settings = step.instruction.operation, self._settings(step)
        inputs = [values[slot] for slot in step.instruction.inputs.values()]
        if step.is_view:
            return operation.forward(*inputs, empty=self.precise.empty, **settings), None
        as_is = operation.moves or operation.sends
        wide = inputs if as_is else [self.precise.widened(each) for each in inputs]
        y = self.perform(step, operation.forward, *wide, empty=self.precise.empty, **settings)
        y, saved = y if isinstance(y, tuple) else (y, None)
        del wide
        return self.precise.rounded(y, dtype), (
            saved if as_is or saved is None else self.precise.rounded(saved, dtype))

    def backward(self, kept: Kept, upstream: Array, contribution: Contribution | None) -> list[Array]:
        """∂L/∂input, if it is requested, in a list; the gradients of parameters are written to `contribution`."""
        gradients, dtype = {self.plan.graph.output.slot: upstream}, upstream.dtype
        del upstream
        self._run_backward(reversed(self.plan.steps), gradients, kept, contribution, dtype)
        return self._of_input(gradients, dtype)

    def backward_input(self, kept: Kept, upstream: Array) -> list[Array]:
        """∂L/∂input, if it is requested, in a list; `kept` is left with what `backward_weights` needs."""
        gradients, dtype = {self.plan.graph.output.slot: upstream}, upstream.dtype
        del upstream
        steps, of_weights = self.plan.split
        staying = {step.instruction.output for step in of_weights}
        self._run_backward(steps, gradients, kept, None, dtype, staying)
        kept.upstreams = {slot: gradients[slot] for slot in staying & gradients.keys()}
        return self._of_input(gradients, dtype)

    def backward_weights(self, kept: Kept, contribution: Contribution | None) -> None:
        """Write the gradients of parameters to `contribution`, after `backward_input`, and empty `kept`."""
        gradients, kept.upstreams = kept.upstreams, {}
        dtype = next((each.dtype for each in gradients.values()), None)
        self._run_backward(self.plan.split[1], gradients, kept, contribution, dtype)

    def _run_backward(
        self, steps: Iterable[Step], gradients: dict[int, Array], kept: Kept, contribution: Contribution | None,
        dtype: Any, staying: Collection[int] = (),
    ) -> None:
        """Run steps backward; `gradients` has ∂L/∂y, and afterwards those of inputs and of the outputs in `staying`."""
        for step in steps:
            output = step.instruction.output
            for slot in self.plan.remade.intersection(step.needed.values()) - kept.values.keys():
                kept.values[slot], _ = self._forward(self.plan.makers[slot], kept.values, dtype)
            if output in staying and output in gradients:
                self._backward(step, gradients[output], gradients, kept, contribution)
            elif output in gradients:
                self._backward(step, gradients.pop(output), gradients, kept, contribution)
            if output not in staying:
                kept.saved.pop(output, None)
            for slot in step.done_backward:
                del kept.values[slot]

    def _of_input(self, gradients: dict[int, Array], dtype: np.dtype[Any]) -> list[Array]:
        """∂L/∂input in C order, if it is requested, in a list; zeros if the output does not depend on it."""
        given = self.plan.graph.input
        if not self.plan.of_input:
            return []
        if given.slot not in gradients:
            gradients[given.slot] = self.precise.empty(given.shape, given.dtype or dtype)
            gradients[given.slot][...] = 0.0
        return [in_one_piece(gradients[given.slot], self.precise.empty)]

    def _backward(
        self, step: Step, upstream: Array, gradients: dict[int, Array], kept: Kept, contribution: Contribution | None
    ) -> None:
        """One operation's gradients, each added to those of the parameter or the value in its slot."""
        operation, dtype = step.instruction.operation, upstream.dtype
        if operation.backward is None or not step.wanted:
            return
        costs_nothing = all(name in operation.passes for name in step.wanted)
        as_is = operation.sends or costs_nothing
        named = {name: self._read(slot, kept, as_is=as_is) for name, slot in step.needed.items()}
        if operation.saves:
            named["saved"] = self.precise.widened(kept.saved[step.instruction.output])
        wide = upstream if as_is else self.precise.widened(upstream)
        into = Into({name: self.plan.graph.shape(step.instruction.inputs[name]) for name in step.wanted},
                    lambda name: self._room(step, name, wide.dtype, contribution))
        settings = {**named, **self._settings(step)}
        if costs_nothing:
            operation.backward(wide, into, empty=self.precise.empty, **settings)
        else:
            self.perform(step, operation.backward, wide, into, empty=self.precise.empty, **settings)
        for name in step.wanted:
            passed = upstream if name in into.passed and into[name] is wide else into[name]
            self._give(step.instruction.inputs[name], passed, dtype, gradients, contribution,
                       shared=name in into.passed)

    def _give(
        self, slot: int, found: Array, dtype: np.dtype[Any], gradients: dict[int, Array],
        contribution: Contribution | None, *, shared: bool,
    ) -> None:
        """Add a gradient, or one more term of it, to the parameter or the value in this slot, in that slot's dtype.

        `dtype` is for values to which no policy gave one. A `shared` term is never added in place.
        """
        if slot in self._names:
            self._write(self._names[slot], found, contribution)
            return
        term = self.precise.rounded(found, self.plan.graph.dtype(slot) or dtype)
        if slot not in gradients:
            gradients[slot] = term
            return
        so_far = gradients.pop(slot)
        out = self.precise.empty(term.shape, term.dtype) if shared and term is found else term
        gradients[slot] = np.add(so_far, term, out=out)

    def _read(self, slot: int, kept: Kept, *, as_is: bool) -> Array:
        """The array that backward reads in this slot, widened unless it is needed as it is."""
        array = kept.values[slot] if slot in kept.values else self._parameter(slot)
        return array if as_is or array.dtype.kind == "i" else self.precise.widened(array)

    def _parameter(self, slot: int) -> Array:
        """The parameter in this slot, or the view of one that forward made."""
        if slot in self._names:
            return self.parameters[self._names[slot]]
        made = self.plan.parameter_views[slot]
        inputs = [self._parameter(each) for each in made.inputs.values()]
        view: Array = made.operation.forward(*inputs, empty=self.precise.empty, **made.settings)
        return view

    def _room(self, step: Step, name: str, dtype: np.dtype[Any], contribution: Contribution | None) -> Array:
        """Memory for the gradient of an input: of a parameter's first one, its place among all gradients."""
        operation, slot = step.instruction.operation, step.instruction.inputs[name]
        if slot not in self._names:
            chosen = self.plan.graph.dtype(slot)
            return self.precise.to_round(self.plan.graph.shape(slot), dtype, chosen or dtype)
        assert contribution is not None
        view = contribution.views[self._names[slot]]
        first = next(other for other in step.wanted if step.instruction.inputs[other] == slot)
        if self._names[slot] not in contribution.written and name == first:
            return view if operation.sends else self.precise.wide_like(view)
        return self.precise.allocate(view.shape, dtype, kind="buffers", owner=self.precise.owner)

    def _write(self, name: Hashable, found: Array, contribution: Contribution | None) -> None:
        """Write the first gradient of a parameter, rounded into its view, or add a further one to it."""
        assert contribution is not None
        view = contribution.views[name]
        if name in contribution.written:
            view += self.precise.rounded(found, view.dtype)
        elif found is not view:
            view[...] = found
        contribution.written.add(name)

    def _settings(self, step: Step) -> dict[str, Any]:
        settings = dict(step.instruction.settings)
        if step.instruction.operation.draws:
            settings["draws"] = self.draws(step.instruction)
        return settings


def same_memory(one: Array, other: Array) -> bool:
    """Whether two arrays are views of one block of memory.

    >>> block = np.zeros(4)
    >>> same_memory(block[:2], block[2:].reshape(1, 2)), same_memory(block, block.copy())
    (True, False)
    """
    return owner(one) is owner(other)
