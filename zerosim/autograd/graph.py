"""The graph of a layer: its operations in order, found by running its code on variables that have no numbers.

    slot       the number of a value in a graph
    kept       stays from forward until backward, because the backward of some operation reads it
    plan       how a graph is run where certain gradients are wanted

A tape that records while it computes learns too late who else will read an array. A graph knows every value's shape
and last use before any number exists. From it follow:

- what backward needs, so that nothing else is kept: an operation declares, for each gradient, which inputs it reads;
- where every other value is used for the last time, so that it is freed there;
- where an operation may write over its input, and where a residual connection still reads it;
- the floating-point operations of all matrix products, forward, backward and recomputed.

The price: a layer's code cannot branch on values, and each new shape of input costs a few milliseconds, once for each
text. Graphs name parameters by their number in the unit and layers by their number in the segment, so that alike units
share a graph and a plan prices them once.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from zerosim.autograd.operation import Operation, Shape
from zerosim.autograd.operations.elementwise import add, multiply, scale

Weights = Mapping[str, "Variable"]
"""A layer's parameters, by the names that its text has for them."""

Compute = Callable[[Weights, "Variable"], "Variable"]
"""A layer's text: its output as a function of weights and input."""


@dataclass(frozen=True, eq=False)
class Variable:
    """A value of a graph: the input, a parameter, or what an operation makes."""

    graph: "Graph"
    slot: int
    shape: Shape

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
    """One operation in a graph: the slots of its inputs, by name, and of what it makes."""

    operation: Operation
    inputs: Mapping[str, int]
    output: int
    settings: Mapping[str, Any]
    layer: int
    """The number of its layer in the graph."""
    number: int
    """The number of the operation within its layer."""


@dataclass(eq=False)
class Graph:
    """The operations that make the output of an input of `shape`, and the parameters they read.

    >>> from zerosim.autograd.operations.elementwise import relu
    >>> graph = Graph((4, 3))
    >>> graph.output = relu(graph.input) + graph.input
    >>> [each.operation.name for each in graph.instructions], graph.output.shape
    (['relu', 'add'], (4, 3))
    """

    input_shape: Shape
    instructions: list[Instruction] = field(default_factory=list)
    parameters: dict[Hashable, Variable] = field(default_factory=dict)
    values: list[Variable] = field(default_factory=list)
    layer: int = 0
    """The layer whose code is being read."""

    def __post_init__(self) -> None:
        self.input = self._value(self.input_shape)
        self.output = self.input
        self._operations_of = Counter[int]()
        """How many there are so far of each layer."""

    def _value(self, shape: Shape) -> Variable:
        self.values.append(Variable(self, len(self.values), shape))
        return self.values[-1]

    def parameter(self, name: Hashable, shape: Shape) -> Variable:
        """The variable of a parameter, the same one each time."""
        if name not in self.parameters:
            self.parameters[name] = self._value(shape)
        return self.parameters[name]

    def apply(self, operation: Operation, inputs: Sequence[Variable], settings: Mapping[str, Any]) -> Variable:
        """The variable that `operation` makes of `inputs`."""
        output = self._value(operation.shape(*(each.shape for each in inputs), **settings))
        slots = {name: each.slot for name, each in zip(operation.inputs, inputs, strict=False)}
        number = self._operations_of[self.layer]
        self._operations_of[self.layer] += 1
        self.instructions.append(Instruction(operation, slots, output.slot, settings, self.layer, number))
        return output

    def shape(self, slot: int) -> Shape:
        return self.values[slot].shape


@dataclass(frozen=True, eq=False)
class GraphPlan:
    """The way a graph is run where gradients are wanted of its parameters, its input, both, or neither."""

    graph: Graph
    of_parameters: bool
    of_input: bool
    chosen: frozenset[int] = frozenset()
    """The slots whose values stay although no backward of this plan reads them."""
    saving: frozenset[int] = frozenset()
    """The outputs beside which stays what their operations save."""

    @cached_property
    def differentiated(self) -> frozenset[int]:
        """The slots that have a gradient."""
        found = {each.slot for each in self.graph.parameters.values()} if self.of_parameters else set()
        if self.of_input:
            found.add(self.graph.input.slot)
        for instruction in self.graph.instructions:
            operation = instruction.operation
            if any(slot in found for name, slot in instruction.inputs.items()
                   if name in operation.needs or name in operation.passed):
                found.add(instruction.output)
        return frozenset(found)

    def wanted(self, instruction: Instruction) -> tuple[str, ...]:
        """The inputs of which the instruction's backward is to give the gradient."""
        operation = instruction.operation
        has_one = [name for name in instruction.inputs if name in operation.needs or name in operation.passed]
        return tuple(name for name in has_one if instruction.inputs[name] in self.differentiated)

    def needed(self, instruction: Instruction) -> dict[str, int]:
        """The slots that backward reads, by name."""
        names = {name for wanted in self.wanted(instruction) for name in instruction.operation.needs.get(wanted, ())}
        places = {**instruction.inputs, "y": instruction.output}
        return {name: slot for name, slot in places.items() if name in names}

    @cached_property
    def steps(self) -> tuple["Step", ...]:
        """The instructions in order, with everything that is known of each beforehand."""
        return tuple(self._step(number, each) for number, each in enumerate(self.graph.instructions))

    def _step(self, number: int, instruction: Instruction) -> "Step":
        needed = self.needed(instruction)
        return Step(
            instruction=instruction,
            shape=self.graph.shape(instruction.output),
            wanted=self.wanted(instruction),
            needed=needed,
            spoiled=frozenset(
                name for name in instruction.operation.spoils
                if name in needed and not self._reads_last(needed[name], number)
            ),
            done=tuple(slot for slot in self._ending[number] if slot not in self.kept),
            done_backward=tuple(slot for slot in sorted(set(needed.values())) if self._first_reader[slot] == number
                                and slot in self.kept),
            in_place=self._in_place(number, instruction),
            input_shapes={name: self.graph.shape(slot) for name, slot in instruction.inputs.items()},
            keeps_saved=bool(self.wanted(instruction)) or instruction.output in self.saving,
            forward_operations=self._operations(instruction),
            backward_operations=self._backward_operations(instruction),
            for_backward=number <= self._last_for_backward,
        )

    @cached_property
    def kept(self) -> frozenset[int]:
        """The slots that stay from forward until backward; no parameters, which are handed in again."""
        needed = {slot for each in self.graph.instructions for slot in self.needed(each).values()}
        return frozenset(needed - self._parameters) | self.chosen

    @cached_property
    def _last_for_backward(self) -> int:
        """The number of the last instruction that makes, or saves, what backward reads; −1 if none does.

        >>> from zerosim.autograd.operations.linear import linear
        >>> graph = Graph((8, 3))
        >>> narrow = linear(graph.input, graph.parameter("a", (2, 3)))
        >>> graph.output = linear(narrow, graph.parameter("b", (4, 2)))
        >>> [step.for_backward for step in GraphPlan(graph, of_parameters=True, of_input=True).steps]
        [True, False]
        """
        return max((
            number for number, each in enumerate(self.graph.instructions)
            if each.output in self.kept or (each.operation.saves and self.wanted(each))
        ), default=-1)

    @cached_property
    def _parameters(self) -> frozenset[int]:
        return frozenset(each.slot for each in self.graph.parameters.values())

    @cached_property
    def _first_reader(self) -> dict[int, int]:
        """The first instruction whose backward reads each kept slot; in backward it comes last."""
        readers: dict[int, int] = {}
        for number, each in enumerate(self.graph.instructions):
            for slot in self.needed(each).values():
                readers.setdefault(slot, number)
        return readers

    def _reads_last(self, slot: int, number: int) -> bool:
        """Whether nobody reads the slot, or another view of its memory, after this instruction's backward."""
        memory = self._memory[slot]
        family = [each for each in self._families[memory] if each in self.kept]
        mine = memory not in (self._memory[self.graph.input.slot], self._memory[self.graph.output.slot])
        return mine and all(self._first_reader[each] == number for each in family)

    @cached_property
    def _last_use(self) -> dict[int, int]:
        """The last instruction that reads each slot in forward."""
        return {slot: number for number, each in enumerate(self.graph.instructions) for slot in each.inputs.values()}

    @cached_property
    def _ending(self) -> Mapping[int, list[int]]:
        """The slots that end with each instruction in forward, unless kept: neither a parameter nor the output."""
        found = defaultdict(list)
        for slot, number in self._last_use.items():
            if slot not in self._parameters and slot != self.graph.output.slot:
                found[number].append(slot)
        return found

    @cached_property
    def _memory(self) -> dict[int, int]:
        """The slot in whose memory each slot lies: another one if it is a view."""
        found = {each.slot: each.slot for each in self.graph.values}
        for each in self.graph.instructions:
            if each.operation.views:
                found[each.output] = found[next(iter(each.inputs.values()))]
        return found

    @cached_property
    def _families(self) -> Mapping[int, list[int]]:
        """The slots that lie in the memory of each slot."""
        found = defaultdict(list)
        for slot, memory in self._memory.items():
            found[memory].append(slot)
        return found

    def _in_place(self, number: int, instruction: Instruction) -> bool:
        """Whether y may be written over the operation's input, as nobody else will read that memory."""
        if instruction.operation.over is None:
            return False
        slot = instruction.inputs[instruction.operation.over]
        memory = self._memory[slot]
        family = self._families[memory]
        foreign = memory in self._parameters or memory == self._memory[self.graph.input.slot]
        lives_on = any(each in self.kept or self._last_use.get(each, number) > number for each in family)
        twice = list(instruction.inputs.values()).count(slot) > 1
        same_shape = self.graph.shape(slot) == self.graph.shape(instruction.output)
        return same_shape and not (foreign or lives_on or twice or self._memory[self.graph.output.slot] == memory)

    @cached_property
    def forward_operations(self) -> int:
        """Floating-point operations of all matrix products in forward."""
        return sum(self._operations(each) for each in self.graph.instructions)

    @cached_property
    def backward_operations(self) -> int:
        """Floating-point operations of all matrix products in backward."""
        return sum(self._backward_operations(each) for each in self.graph.instructions)

    def _backward_operations(self, instruction: Instruction) -> int:
        products = instruction.operation.backward_products
        times = sum(products.get(name, 0.0) for name in self.wanted(instruction))
        return round(self._operations(instruction) * times)

    def _operations(self, instruction: Instruction) -> int:
        if instruction.operation.multiplications is None:
            return 0
        shapes = [self.graph.shape(slot) for slot in instruction.inputs.values()]
        made = self.graph.shape(instruction.output)
        return 2 * instruction.operation.multiplications(made, *shapes, **instruction.settings)


@dataclass(frozen=True, eq=False)
class Step:
    """An instruction as a plan runs it."""

    instruction: Instruction
    shape: Shape
    wanted: tuple[str, ...]
    needed: Mapping[str, int]
    spoiled: frozenset[str]
    """The inputs that backward would write over although somebody still reads it: it gets copies."""
    done: tuple[int, ...]
    """The slots that nobody needs after it in forward, nor in backward."""
    done_backward: tuple[int, ...]
    """The kept slots that nobody needs after its backward."""
    in_place: bool
    input_shapes: Mapping[str, Shape]
    keeps_saved: bool
    """Whether what forward saves is kept."""
    forward_operations: int
    """Floating-point operations of its matrix products, in forward and in backward."""
    backward_operations: int
    for_backward: bool
    """Whether it comes before what backward needs: who computes a unit again may stop after the last that does."""

