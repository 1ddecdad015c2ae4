"""The player: runs every operation of one segment's graph on one micro-batch, forward and backward.

It frees values by the plan that `graph.py` made, and everything else by its last reference.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from zerosim.autograd.graph import GraphPlan, Instruction, Step
from zerosim.autograd.operation import Into, Shape
from zerosim.autograd.operations.dropout import Draws
from zerosim.autograd.operations.shapes import in_one_piece
from zerosim.core.allocation import Allocator, Array

FLOAT_BYTES = np.dtype(np.float32).itemsize


@dataclass(eq=False)
class Kept:
    """The arrays that backward needs of one micro-batch: values by slot, and saved arrays by their output's slot.

    Within backward, and between the two parts of a split one, there are also `gradients`: ∂L/∂ of values, by slot.
    """

    plan: GraphPlan
    values: dict[int, Array] = field(default_factory=dict)
    saved: dict[int, Array] = field(default_factory=dict)
    gradients: dict[int, Array] = field(default_factory=dict)


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

    def to_round(self, shape: Shape, dtype: Any) -> Array:
        """Memory for numbers that are rounded after the operation, or that it reads widened."""
        return self.allocate(shape, dtype, kind="buffers", owner="widened")

    def widened(self, array: Array) -> Array:
        """`array` in at least 32 bits: itself if it has them, else a copy."""
        if array.dtype.itemsize >= FLOAT_BYTES:
            return array
        wide = self.to_round(array.shape, np.float32)
        wide[...] = array
        return wide

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

    def again(self, x: Array, steps: Sequence[Step], given: Kept) -> Kept:
        """The arrays for backward, recomputed by `steps` from the input and from the results that forward kept."""
        return self._play(steps, x, given)[1]

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
        wide = inputs if as_is else [self.precise.widened(array) for array in inputs]
        y = self.perform(step, operation.forward, *wide, empty=self.precise.empty, **settings)
        y, saved = y if isinstance(y, tuple) else (y, None)
        del wide
        return self.precise.rounded(y, dtype), (
            saved if as_is or saved is None else self.precise.rounded(saved, dtype))

    def backward(
        self, kept: Kept, upstream: Array | None, contribution: Contribution | None,
        steps: Sequence[Step] | None = None,
    ) -> list[Array]:
        """∂L/∂input in C order, if it is wanted, in a list; the gradients of parameters are written to `contribution`.

        `steps` is a part of a split backward, by default all steps. The second part has no `upstream`: it goes on with
        the gradients that the first has left in `kept`.
        """
        dtype = None if upstream is None else upstream.dtype
        if upstream is not None and self.plan.graph.output.slot in self.plan.differentiated:
            kept.gradients[self.plan.graph.output.slot] = upstream
        del upstream
        for step in self.plan.steps[::-1] if steps is None else steps:
            output = step.instruction.output
            if output in kept.gradients:
                taken = kept.gradients.__getitem__ if step.stays else kept.gradients.pop
                self._backward(step, taken(output), kept, contribution)
            if not step.stays:
                kept.saved.pop(output, None)
            for slot in step.done_backward:
                del kept.values[slot]
        if dtype is None or not self.plan.of_input:
            return []
        x = self.plan.graph.input
        if x.slot not in kept.gradients:    # the output does not depend on it
            kept.gradients[x.slot] = self.precise.empty(x.shape, x.dtype or dtype)
            kept.gradients[x.slot][...] = 0.0
        return [in_one_piece(kept.gradients.pop(x.slot), self.precise.empty)]

    def _backward(self, step: Step, upstream: Array, kept: Kept, contribution: Contribution | None) -> None:
        """One operation's gradients, each added to those of the parameter or the value in its slot."""
        operation, inputs, dtype = step.instruction.operation, step.instruction.inputs, upstream.dtype
        if operation.backward is None or not step.wanted:
            return
        costs_nothing = all(name in operation.passes for name in step.wanted)
        as_is = operation.sends or costs_nothing
        settings = self._settings(step)
        for name, slot in step.needed.items():
            array = kept.values[slot] if slot in kept.values else self._parameter(slot)
            settings[name] = array if as_is or array.dtype.kind == "i" else self.precise.widened(array)
        if operation.saves:
            settings["saved"] = self.precise.widened(kept.saved[step.instruction.output])
        wide = upstream if as_is else self.precise.widened(upstream)
        into = Into({name: step.input_shapes[name] for name in step.wanted},
                    lambda name: self._memory_for(step, name, wide.dtype, contribution))
        if costs_nothing:
            operation.backward(wide, into, empty=self.precise.empty, **settings)
        else:
            self.perform(step, operation.backward, wide, into, empty=self.precise.empty, **settings)
        for name in step.wanted:
            term = upstream if name in into.passed and into[name] is wide else into[name]
            if inputs[name] in self._names:
                self._write(self._names[inputs[name]], term, contribution)
            else:
                self._add(inputs[name], term, dtype, kept.gradients, shared=name in into.passed)

    def _add(
        self, slot: int, given: Array, dtype: np.dtype[Any], gradients: dict[int, Array], *, shared: bool
    ) -> None:
        """Add a term to the gradient of the value in this slot, in that slot's dtype, or `dtype` if it has none.

        A `shared` term is never added in place.
        """
        term = self.precise.rounded(given, self.plan.graph.values[slot].dtype or dtype)
        if slot not in gradients:
            gradients[slot] = term
            return
        so_far = gradients.pop(slot)
        out = self.precise.empty(term.shape, term.dtype) if shared and term is given else term
        gradients[slot] = np.add(so_far, term, out=out)

    def _parameter(self, slot: int) -> Array:
        """The parameter in this slot, or the view of one that forward made."""
        if slot in self._names:
            return self.parameters[self._names[slot]]
        viewing = self.plan.parameter_views[slot]
        inputs = [self._parameter(slot) for slot in viewing.inputs.values()]
        view: Array = viewing.operation.forward(*inputs, empty=self.precise.empty, **viewing.settings)
        return view

    def _memory_for(self, step: Step, name: str, dtype: np.dtype[Any], contribution: Contribution | None) -> Array:
        """Memory for the gradient of an input; the first gradient of a parameter is written to its place."""
        operation, slot = step.instruction.operation, step.instruction.inputs[name]
        if slot not in self._names:
            value = self.plan.graph.values[slot]
            rounds = (value.dtype or dtype) != dtype
            return (self.precise.to_round if rounds else self.precise.empty)(value.shape, dtype)
        assert contribution is not None
        view = contribution.views[self._names[slot]]
        first = next(other for other in step.wanted if step.instruction.inputs[other] == slot)
        if self._names[slot] not in contribution.written and name == first:
            as_it_is = operation.sends or view.dtype.itemsize >= FLOAT_BYTES
            return view if as_it_is else self.precise.to_round(view.shape, np.float32)
        return self.precise.allocate(view.shape, dtype, kind="buffers", owner=self.precise.owner)

    def _write(self, name: Hashable, term: Array, contribution: Contribution | None) -> None:
        """Write the first gradient of a parameter, rounded into its view, or add a further one to it."""
        assert contribution is not None
        view = contribution.views[name]
        if name in contribution.written:
            view += self.precise.rounded(term, view.dtype)
        elif term is not view:
            view[...] = term
        contribution.written.add(name)

    def _settings(self, step: Step) -> dict[str, Any]:
        settings = dict(step.instruction.settings)
        if step.instruction.operation.draws:
            settings["draws"] = self.draws(step.instruction)
        return settings
