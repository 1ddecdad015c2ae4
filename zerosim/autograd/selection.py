"""Selective recomputation: which results stay in memory of a unit that is run forward again before its backward.

    results    an operation's output, and what else its backward reads
    keeps      the name of a rule that chooses results: a key of `SELECTIONS`

Forward keeps the chosen results beside the unit's input. Recomputation starts from both and repeats only operations
that lead to something backward reads and that is not there yet. What is kept has the bits that repeating it would
give, so gradients have the bits of a step that keeps everything.

PyTorch keeps what a policy names even if backward will not read it, and so do these rules: an output of the last
product of a block is kept for nothing. Memory is then that of PyTorch's runs.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from zerosim.autograd.graph import GraphPlan, Instruction, Step


class Results(NamedTuple):
    """The slots whose values are kept, and those of outputs beside which more is kept."""

    values: frozenset[int]
    saved: frozenset[int]


def is_product(instruction: Instruction) -> bool:
    return instruction.operation.multiplications is not None


def is_attention(instruction: Instruction) -> bool:
    """Whether it multiplies, and has no weights."""
    return is_product(instruction) and "weight" not in instruction.inputs


def products(plan: GraphPlan) -> Results:
    """The results of attention and of all products with weights."""
    slots = frozenset(each.output for each in plan.graph.instructions if is_product(each))
    return Results(slots, slots)


def half_products(plan: GraphPlan) -> Results:
    """The results of attention and of every other product with weights, from the first on: torchtitan's choice."""
    found = [each for each in plan.graph.instructions if is_product(each)]
    slots = {each.output for each in found if is_attention(each)}
    slots |= {each.output for each in [each for each in found if not is_attention(each)][::2]}
    return Results(frozenset(slots), frozenset(slots))


def all_but_attention(plan: GraphPlan) -> Results:
    """All that backward reads but what attention saves: Megatron's selective recomputation, of attention's core alone.

    Korthikanti et al., "Reducing activation recomputation in large transformer models" (2022), section 5.
    """
    saved = frozenset(each.output for each in plan.graph.instructions if not is_attention(each))
    return Results(plan.kept - {plan.graph.input.slot}, saved)


SELECTIONS: dict[str, Callable[[GraphPlan], Results]] = {
    "products": products, "half_products": half_products, "all_but_attention": all_but_attention,
}


@dataclass(frozen=True, eq=False)
class SelectedPlan:
    """A plan whose forward keeps chosen results, and the steps that make the others again.

    >>> from zerosim.autograd.graph import Graph
    >>> from zerosim.autograd.operations.elementwise import relu
    >>> from zerosim.autograd.operations.linear import linear
    >>> graph = Graph((8, 3))
    >>> h = relu(linear(graph.input, graph.parameter("a", (5, 3))))
    >>> graph.output = linear(h, graph.parameter("b", (2, 5)))
    >>> selected = SelectedPlan(GraphPlan(graph, of_parameters=True, of_input=True), "products")
    >>> [step.instruction.operation.name for step in selected.again]
    ['relu']
    """

    plan: GraphPlan
    """The plan for backward, and for what it reads."""
    keeps: str

    @cached_property
    def results(self) -> Results:
        """What forward keeps."""
        return SELECTIONS[self.keeps](self.plan)

    @cached_property
    def forward(self) -> GraphPlan:
        """The plan of the first forward."""
        return GraphPlan(
            self.plan.graph, of_parameters=False, of_input=False, chosen=self.results.values, saving=self.results.saved)

    @cached_property
    def again(self) -> tuple[Step, ...]:
        """The steps of recomputation, in order; each frees what no later one and no backward reads."""
        wanted, found, last = set(self.plan.kept - self.results.values), list[Step](), set[int]()
        for step in reversed(self.plan.steps):
            output, inputs = step.instruction.output, set(step.instruction.inputs.values())
            lacks = step.wanted and step.instruction.operation.saves and output not in self.results.saved
            if output not in wanted and not lacks:
                continue
            ending = inputs - last - self.plan.kept - self._parameters - {self.plan.graph.output.slot}
            found.append(replace(step, done=tuple(sorted(ending))))
            last |= inputs
            wanted |= inputs - self.results.values
        return tuple(reversed(found))

    @cached_property
    def _parameters(self) -> frozenset[int]:
        return frozenset(each.slot for each in self.plan.graph.parameters.values())

    @cached_property
    def operations(self) -> int:
        """Floating-point operations of the products that are computed again."""
        return sum(step.forward_operations for step in self.again)
