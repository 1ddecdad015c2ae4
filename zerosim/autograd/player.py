"""The player: runs every operation of one segment's graph on one micro-batch, forward and backward.

It allocates and frees by the plan that `graph.py` made. The planner replaces it by a player that repeats the
allocations of an earlier run of an equal segment.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from zerosim.allocation import Allocator, Array
from zerosim.autograd.graph import GraphPlan, Instruction, Step
from zerosim.autograd.operation import Operation, Shape
from zerosim.autograd.operations.dropout import Draws
from zerosim.autograd.operations.shapes import contiguous
from zerosim.autograd.selection import SelectedPlan
from zerosim.errors import ZerosimError

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

    def in_one_piece(self, array: Array) -> Array:
        """`array` in C order: itself, or a copy, which the ledger counts."""
        return array if contiguous(array) else self.copied(array)

    def copied(self, array: Array) -> Array:
        """A copy in C order, which the ledger counts."""
        copy = self.empty(array.shape, array.dtype)
        copy[...] = array
        return copy

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
        """`array` as `dtype`: itself, or a rounded copy."""
        if array.dtype == dtype:
            return array
        narrow = self.empty(array.shape, dtype)
        narrow[...] = array
        return narrow


Perform = Callable[..., Any]
"""`perform(step, function, *arrays, **named)` runs one operation's forward or backward; a loss has no step."""


def perform(step: Step | None, function: Callable[..., Any], *arrays: Any, **named: Any) -> Any:
    """The result of `function` on these arrays; None for a forward that returns what its backward does not read.

    >>> perform(None, max, 1, 2)
    2
    """
    found = function(*arrays, **named)
    return found if step is None or step.instruction.operation.saves else None


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
        return self.precise.in_one_piece(values[self.plan.graph.output.slot]), kept

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
            if saved is not None:
                kept.saved[output] = saved
            for slot in step.done:
                del values[slot]
        kept.values = {slot: values[slot] for slot in self.plan.kept}
        return values, kept

    def _forward(self, step: Step, values: dict[int, Array], dtype: np.dtype[Any]) -> tuple[Array, Array | None]:
        """One operation's output and its saved array, in the precision `dtype`."""
        operation, settings = step.instruction.operation, self._settings(step)
        inputs = [values[slot] for slot in step.instruction.inputs.values()]
        if operation.aliases:
            return self._view(step.instruction, inputs), None
        as_is = operation.moves or operation.sends
        wide = inputs if as_is else [self.precise.widened(each) for each in inputs]
        made_in = np.dtype(np.int64) if operation.indices else dtype if as_is else wide[0].dtype
        out = self._output(step, inputs, wide, dtype, made_in)
        saved = self.perform(step, operation.forward, *wide, out=out, empty=self.precise.empty, **settings)
        if not step.keeps_saved:
            saved = None
        elif saved is not None and not hasattr(saved, "nbytes"):
            raise ZerosimError(f"{operation.name} {no_array(saved)}")
        elif any(same_memory(saved, each) for each in (out, *wide)):
            raise ZerosimError(f"{operation.name} saves a view of an input or of its output; name that array in needs "
                               "and save an array of empty, or nothing")
        if as_is or saved is None:
            return (out if as_is else self.precise.rounded(out, dtype)), saved
        return self.precise.rounded(out, dtype), self.precise.rounded(saved, dtype)

    def _view(self, made: Instruction, inputs: Sequence[Array]) -> Array:
        """The view that an operation declares, of memory in C order if it copies others."""
        operation = made.operation
        given = {name: self.precise.in_one_piece(each) if operation.copies else each
                 for name, each in zip(made.inputs, inputs, strict=True)}
        view = operation.forward(*given.values(), out=None, empty=self.precise.empty, **made.settings)
        if view is None or not same_memory(view, given[operation.aliases or ""]):
            raise ZerosimError(f"{operation.name} {no_view(operation)}")
        return view

    def _output(
        self, step: Step, inputs: Sequence[Array], wide: Sequence[Array], dtype: np.dtype[Any], made_in: np.dtype[Any],
    ) -> Array:
        """The array in C order that an operation writes: an input that may be overwritten, or the widened copy of it if
        the output is rounded afterwards, or a new one of dtype `made_in`."""
        over = step.instruction.operation.over
        if over is not None:
            index = step.instruction.operation.inputs.index(over)
            copied = wide[index] is not inputs[index]
            may_be = dtype != wide[index].dtype if copied else step.in_place
            if wide[index].shape == step.shape and may_be and contiguous(wide[index]):
                return wide[index]
        return self.precise.empty(step.shape, made_in)

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
        return [self.precise.copied(each) if any(same_memory(each, other) for other in kept.upstreams.values())
                else each for each in self._of_input(gradients, dtype)]

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
        """∂L/∂input in C order, if it is requested, in a list."""
        given = self.plan.graph.input
        if not self.plan.of_input:
            return []
        if given.slot not in gradients:
            gradients[given.slot] = self._nothing(given.shape, given.dtype or dtype)
        return [self.precise.in_one_piece(gradients[given.slot])]

    def _nothing(self, shape: Shape, dtype: np.dtype[Any]) -> Array:
        """The gradient of an input on which the output does not depend: zeros."""
        zeros = self.precise.empty(shape, dtype)
        zeros[...] = 0.0
        return zeros

    def _backward(
        self, step: Step, upstream: Array, gradients: dict[int, Array], kept: Kept, contribution: Contribution | None
    ) -> None:
        operation, slots = step.instruction.operation, step.instruction.inputs
        for name in step.wanted:
            if name in operation.passed:
                shape = self.plan.graph.shape(slots[name])
                if operation.copies:
                    upstream = self.precise.in_one_piece(upstream)
                seen = operation.passed[name](upstream, shape, **step.instruction.settings)
                self._give(slots[name], seen, upstream.dtype, gradients, contribution, shared=True)
        if operation.backward is None or all(name in operation.passed for name in step.wanted):
            return
        widened = as_they_are if operation.sends else self.precise.widened
        named = {name: self._read(step, name, slot, kept, widened) for name, slot in step.needed.items()}
        if step.instruction.output in kept.saved:
            named["saved"] = self.precise.widened(kept.saved[step.instruction.output])
        wide = widened(upstream)
        into: dict[str, Array] = {}
        for name in step.wanted:
            if name not in operation.passed:
                into[name] = self._room(step, name, upstream, wide, into, gradients, contribution)
        self.perform(
            step, operation.backward, wide, into, empty=self.precise.empty, **named, **self._settings(step))
        for name, found in into.items():
            self._give(slots[name], found, upstream.dtype, gradients, contribution, shared=False)

    def _give(
        self, slot: int, found: Array, dtype: np.dtype[Any], gradients: dict[int, Array],
        contribution: Contribution | None, *, shared: bool,
    ) -> None:
        """Add a gradient, or one more term of it, to the parameter or the value in this slot, in that slot's dtype.

        `dtype` is for values to which no policy gave one.
        """
        if slot in self._names:
            self._write(self._names[slot], found, contribution)
        else:
            term = self.precise.rounded(found, self.plan.graph.dtype(slot) or dtype)
            self._add(slot, term, gradients, shared and term is found)

    def _read(self, step: Step, name: str, slot: int, kept: Kept, widened: Callable[[Array], Array]) -> Array:
        """The array that backward reads under this name, widened; a copy if it is overwritten while others still read
        it."""
        array = kept.values[slot] if slot in kept.values else self._parameter(slot)
        if array.dtype.kind == "i":
            return array
        wide = widened(array)
        return self.precise.copied(wide) if name in step.spoiled and wide is array else wide

    def _parameter(self, slot: int) -> Array:
        """The parameter in this slot, or the view of one that forward made."""
        if slot in self._names:
            return self.parameters[self._names[slot]]
        made = self.plan.parameter_views[slot]
        return self._view(made, [self._parameter(each) for each in made.inputs.values()])

    def _room(
        self, step: Step, name: str, upstream: Array, wide: Array, into: Mapping[str, Array],
        gradients: dict[int, Array], contribution: Contribution | None,
    ) -> Array:
        """The array for the gradient of an input; `into` has the gradients before it."""
        operation, slot = step.instruction.operation, step.instruction.inputs[name]
        if slot in self._names:
            assert contribution is not None
            view = contribution.views[self._names[slot]]
            twice = any(step.instruction.inputs[other] == slot for other in into)
            if self._names[slot] not in contribution.written and not twice:
                return view if operation.sends else self.precise.wide_like(view)
            return self.precise.allocate(view.shape, wide.dtype, kind="buffers", owner=self.precise.owner)
        alone = wide is not upstream or not any(same_memory(upstream, other) for other in gradients.values())
        shape = self.plan.graph.shape(slot)
        if operation.over_upstream == name and alone and shape == wide.shape and contiguous(wide):
            return wide
        chosen = self.plan.graph.dtype(slot)
        return self.precise.to_round(shape, wide.dtype, chosen) if chosen else self.precise.empty(shape, wide.dtype)

    def _write(self, name: Hashable, found: Array, contribution: Contribution | None) -> None:
        """Write the first gradient of a parameter, rounded into its view, or add a further one to it."""
        assert contribution is not None
        view = contribution.views[name]
        if name in contribution.written:
            view += self.precise.rounded(found, view.dtype)
        elif found is not view:
            view[...] = found
        contribution.written.add(name)

    def _add(self, slot: int, found: Array, gradients: dict[int, Array], shared: bool) -> None:
        """Add one more term of a value's gradient, in memory that nothing else reads; `shared` if the term is read
        again."""
        if slot not in gradients:
            gradients[slot] = found
            return
        so_far = gradients.pop(slot)
        others = list(gradients.values())
        out = next(
            (each for each in ([so_far] if shared else [found, so_far])
             if not any(same_memory(each, other) for other in others) and not same_memory(found, so_far)),
            None,
        )
        if out is None:
            out = self.precise.empty(so_far.shape, so_far.dtype)
        gradients[slot] = np.add(so_far, found, out=out)

    def _settings(self, step: Step) -> dict[str, Any]:
        settings = dict(step.instruction.settings)
        if step.instruction.operation.draws:
            settings["draws"] = self.draws(step.instruction)
        return settings


def no_view(operation: Operation) -> str:
    """The fault of an operation whose output is not the view that it declares."""
    return (f"returns a copy of its input {operation.aliases} that it declares as a view; write out and leave "
            f"aliases={operation.aliases!r} out, or declare copies=True")


def no_array(saved: object) -> str:
    """The fault of an operation that saves something else than an array."""
    return f"saves a {type(saved).__name__}; return one array of empty(shape, dtype), in which several may lie, or None"


def as_they_are(array: Array) -> Array:
    """The array in its own precision, for operations that send it."""
    return array


def same_memory(one: Array, other: Array) -> bool:
    """Whether two arrays are views of one block of memory.

    >>> block = np.zeros(4)
    >>> same_memory(block[:2], block[2:].reshape(1, 2)), same_memory(block, block.copy())
    (True, False)
    """
    return owner(one) is owner(other)


def owner(array: Any) -> Any:
    while getattr(array, "base", None) is not None:
        array = array.base
    return array
