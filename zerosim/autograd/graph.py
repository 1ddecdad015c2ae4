"""The graph of a layer: its operations in order, recorded by running its code on variables without numbers.

    slot       the number of a value in a graph
    kept       stays from forward until backward, because the backward of some operation reads it
    plan       how a graph is run for certain gradients

A tape that records while it computes does not know the later readers of an array. A graph knows every value's shape
and last use before any number exists: recording runs each forward on extents. From these follow:

- the values that backward reads, so that no other is kept: an operation declares, for each gradient, its inputs;
- the last use of every other value, after which it is freed;
- the floating-point operations of all matrix products, forward, backward and recomputed.

The price: a layer's code cannot branch on values, and each new shape of input costs a few milliseconds, once for each
function. Graphs name parameters by their number in the unit and layers by their number in the segment, so that equal
units share a graph and a plan computes its costs once.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from zerosim.autograd.operation import Operation, Shape
from zerosim.autograd.operations.elementwise import add, multiply, scale
from zerosim.core.extents import owner

Weights = Mapping[str, "Variable"]
"""A layer's parameters, by their names in its code."""

Compute = Callable[[Weights, "Variable"], "Variable"]
"""A layer's code: its output as a function of weights and input."""


@dataclass(frozen=True, eq=False)
class Variable:
    """A value of a graph: the input, a parameter, or the output of an operation."""

    graph: "Graph"
    slot: int
    shape: Shape
    dtype: np.dtype[Any] | None = None
    """The dtype that a policy has chosen; None for that of the weights."""

    def __add__(self, other: "Variable") -> "Variable":
        return add(self, other)

    def __sub__(self, other: "Variable") -> "Variable":
        return add(self, -other)

    def __neg__(self) -> "Variable":
        return scale(self, factor=-1.0)

    def __mul__(self, other: "Variable | float") -> "Variable":
        return multiply(self, other) if isinstance(other, Variable) else scale(self, factor=float(other))

    __rmul__ = __mul__


@dataclass(frozen=True, eq=False)
class Instruction:
    """One operation in a graph: the slots of its inputs, by name, and of its output."""

    operation: Operation
    inputs: Mapping[str, int]
    output: int
    settings: Mapping[str, Any]
    layer: int
    """The number of its layer in the graph."""
    number: int
    """The number of the operation within its layer."""

    @property
    def gradients(self) -> tuple[str, ...]:
        """The inputs for which its backward has a gradient."""
        return tuple(name for name in self.inputs if name in self.operation.needs)

    def needed(self, wanted: Collection[str]) -> dict[str, int]:
        """The slots that backward reads for the gradients of these inputs, by name."""
        names = {name for gradient in wanted for name in self.operation.needs[gradient]}
        return {name: slot for name, slot in {**self.inputs, "y": self.output}.items() if name in names}


@dataclass(eq=False)
class Graph:
    """The operations from an input of `input_shape` to the output, and the parameters that they read.

    >>> from zerosim.autograd.operations.elementwise import relu
    >>> graph = Graph((4, 3))
    >>> graph.output = relu(graph.input) + graph.input
    >>> [instruction.operation.name for instruction in graph.instructions], graph.output.shape
    (['relu', 'add'], (4, 3))
    """

    input_shape: Shape
    instructions: list[Instruction] = field(default_factory=list)
    parameters: dict[Hashable, Variable] = field(default_factory=dict)
    values: list[Variable] = field(default_factory=list)
    layer: int = 0
    """The number of the layer whose code is being recorded."""
    input_dtype: np.dtype[Any] | None = None

    def __post_init__(self) -> None:
        self.views: dict[int, int] = {}
        """The slot that has the memory of each view, by the view's slot."""
        self.indices = set[int]()
        """The slots of indices, which are int64 in every precision and have no gradient."""
        self.input = self._value(self.input_shape, self.input_dtype)
        self.output = self.input
        self._operations_of = Counter[int]()
        """The number of operations recorded so far for each layer."""

    def _value(self, shape: Shape, dtype: np.dtype[Any] | None = None) -> Variable:
        self.values.append(Variable(self, len(self.values), shape, dtype))
        return self.values[-1]

    def parameter(self, name: Hashable, shape: Shape, dtype: np.dtype[Any] | None = None) -> Variable:
        """The variable of a parameter; the same object on each call."""
        if name not in self.parameters:
            self.parameters[name] = self._value(shape, dtype)
        return self.parameters[name]

    def apply(
        self, operation: Operation, inputs: Sequence[Variable], settings: Mapping[str, Any],
        at: tuple[int, int] | None = None, dtype: np.dtype[Any] | None = None,
    ) -> Variable:
        """The variable, of this dtype, of the output of `operation` on `inputs`.

        `at` has the instruction's layer and its number there; by default it is the next one of the recorded layer.
        """
        if at is None:
            at = self.layer, self._operations_of[self.layer]
            self._operations_of[self.layer] += 1
        y, extents = operation.on_shapes([value.shape for value in inputs], settings)
        output = self._value(y.shape, dtype)
        slots = {name: value.slot for name, value in zip(operation.inputs, inputs, strict=False)}
        for value, extent in zip(inputs, extents, strict=True):
            if owner(y) is extent:
                self.views[output.slot] = self.views.get(value.slot, value.slot)
        if y.dtype.kind == "i":
            self.indices.add(output.slot)
        self.instructions.append(Instruction(operation, slots, output.slot, settings, *at))
        return output

    def multiplications(self, instruction: Instruction) -> int:
        """The multiplications of an instruction's matrix products in forward."""
        count = instruction.operation.multiplications
        shapes = [self.values[slot].shape for slot in (instruction.output, *instruction.inputs.values())]
        return count(*shapes, **instruction.settings) if count is not None else 0


@dataclass(frozen=True, eq=False)
class GraphPlan:
    """The way to run a graph for the gradients of its parameters, its input, both, or neither."""

    graph: Graph
    of_parameters: bool
    of_input: bool
    chosen: frozenset[int] = frozenset()
    """The slots whose values are kept although no backward of this plan reads them."""
    saving: frozenset[int] = frozenset()
    """The outputs whose operations' saved arrays are kept."""

    @cached_property
    def differentiated(self) -> frozenset[int]:
        """The slots that have a gradient."""
        slots = set(self.parameters) if self.of_parameters else set()
        if self.of_input:
            slots.add(self.graph.input.slot)
        for instruction in self.graph.instructions:
            if any(instruction.inputs[name] in slots for name in instruction.gradients):
                slots.add(instruction.output)
        return frozenset(slots)

    def wanted(self, instruction: Instruction) -> tuple[str, ...]:
        """The inputs whose gradients the instruction's backward computes."""
        return tuple(name for name in instruction.gradients if instruction.inputs[name] in self.differentiated)

    @cached_property
    def steps(self) -> tuple["Step", ...]:
        """The instructions in order, with all that is known of each before it runs.

        >>> from zerosim.autograd.operations.linear import linear
        >>> graph = Graph((8, 3))
        >>> narrow = linear(graph.input, graph.parameter("a", (2, 3)))
        >>> graph.output = linear(narrow, graph.parameter("b", (4, 2)))
        >>> [step.for_backward for step in GraphPlan(graph, of_parameters=True, of_input=True).steps]
        [True, False]
        """
        last_use = {slot: number for number, instruction in enumerate(self.graph.instructions)
                    for slot in instruction.inputs.values()}
        staying, ending = self.parameters | self.kept | {self.graph.output.slot}, defaultdict(list)
        for slot, number in last_use.items():
            if slot not in staying:
                ending[number].append(slot)
        last_for_backward = max((
            number for number, instruction in enumerate(self.graph.instructions)
            if instruction.output in self.kept or (instruction.operation.saves and self.wanted(instruction))
        ), default=-1)
        later, steps = set[int](), list[Step]()
        for number, instruction in enumerate(self.graph.instructions):
            values, wanted = {**instruction.inputs, "y": instruction.output}, self.wanted(instruction)
            steps.append(Step(
                **self._in_backward(instruction, wanted, later),
                instruction=instruction,
                shape=self.graph.values[instruction.output].shape,
                done=tuple(ending[number]),
                is_view=instruction.output in self.graph.views,
                input_shapes={name: self.graph.values[slot].shape for name, slot in instruction.inputs.items()},
                dtypes={name: self.graph.values[slot].dtype for name, slot in values.items()},
                keeps_saved=bool(wanted) or instruction.output in self.saving,
                forward_operations=2 * self.graph.multiplications(instruction),
                for_backward=number <= last_for_backward,
            ))
        return tuple(steps)

    @cached_property
    def split(self) -> tuple[tuple["Step", ...], tuple["Step", ...]]:
        """The steps of backward in two parts, as they run: gradients on the way to the input, then all others.

        >>> from zerosim.autograd.operations.linear import linear
        >>> graph = Graph((8, 3))
        >>> graph.output = linear(graph.input, graph.parameter("a", (2, 3)))
        >>> parts = GraphPlan(graph, of_parameters=True, of_input=True).split
        >>> [(step.wanted, step.needed) for part in parts for step in part]
        [(('x',), {'weight': 1}), (('weight',), {'x': 0})]
        """
        on_the_way = replace(self, of_parameters=False, of_input=True).differentiated
        later, second = set[int](), frozenset[int]()
        parts = list[tuple[Step, ...]]()
        for of_weights in (True, False):
            part = list[Step]()
            for step in self.steps:
                inputs = step.instruction.inputs
                wanted = tuple(name for name in step.wanted if (inputs[name] in on_the_way) != of_weights)
                if wanted:
                    part.append(replace(step, stays=step.instruction.output in second,
                                        **self._in_backward(step.instruction, wanted, later)))
            second = frozenset(step.instruction.output for step in part)
            parts.append(tuple(reversed(part)))
        return parts[1], parts[0]

    def _in_backward(self, instruction: Instruction, wanted: tuple[str, ...], later: set[int]) -> dict[str, Any]:
        """The fields of a step whose backward computes `wanted`; adds the slots that it reads to those read `later`."""
        needed, products = instruction.needed(wanted), instruction.operation.backward_products
        done = (set(needed.values()) - later) & self.kept
        later |= set(needed.values())
        times = sum(products.get(name, 0.0) for name in wanted)
        return {"wanted": wanted, "needed": needed, "done_backward": tuple(sorted(done)),
                "backward_operations": round(2 * self.graph.multiplications(instruction) * times)}

    @cached_property
    def kept(self) -> frozenset[int]:
        """The slots that stay from forward until backward, except parameters and their views: they are passed again."""
        needed = {slot for instruction in self.graph.instructions
                  for slot in instruction.needed(self.wanted(instruction)).values()}
        memory = {slot: self.graph.views.get(slot, slot) for slot in needed}
        return frozenset(slot for slot in needed if memory[slot] not in self.parameters) | self.chosen

    @cached_property
    def parameter_views(self) -> Mapping[int, Instruction]:
        """The instructions that make views of parameters, by their output."""
        return {instruction.output: instruction for instruction in self.graph.instructions
                if self.graph.views.get(instruction.output) in self.parameters}

    @cached_property
    def parameters(self) -> frozenset[int]:
        """The slots of parameters."""
        return frozenset(parameter.slot for parameter in self.graph.parameters.values())


@dataclass(frozen=True, eq=False)
class Step:
    """An instruction as a plan runs it."""

    instruction: Instruction
    shape: Shape
    wanted: tuple[str, ...]
    """The inputs whose gradients its backward computes."""
    needed: Mapping[str, int]
    """The slots that its backward reads, by name."""
    done: tuple[int, ...]
    """The slots that are freed after it in forward."""
    done_backward: tuple[int, ...]
    """The kept slots that are freed after its backward."""
    is_view: bool
    """Whether the output is a view of an input, which costs nothing."""
    input_shapes: Mapping[str, Shape]
    dtypes: Mapping[str, np.dtype[Any] | None]
    """The dtype of each input, and of the output `y`; None for that of the weights."""
    keeps_saved: bool
    """Whether the array that forward saves is kept."""
    forward_operations: int
    """Floating-point operations of its matrix products, in forward and in backward."""
    backward_operations: int
    for_backward: bool
    """Whether a value for backward is made here or later; recomputation may stop after the last such step."""
    stays: bool = False
    """Whether the other part of a split backward reads ∂L/∂y and the saved array again."""

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """The dtype of the output; None for that of the weights."""
        return self.dtypes["y"]
