"""Selective recomputation: the results that stay in memory for a unit that is run forward again before its backward.

    results    an operation's output, and the array that it saves for its backward
    keeps      the name of a rule that chooses results: a key of `SELECTIONS`

Forward keeps the chosen results in addition to the unit's input. Recomputation starts from both and repeats only the
operations that lead to a missing value of backward. Without a rule nothing is kept but the input, and all is repeated.
A kept result has the same bits as a recomputed one, so gradients have the bits of a step that keeps everything.

PyTorch keeps the results that a policy names even if backward does not read them, and so do these rules: keeping the
output of a block's last product has no use. Memory then equals that of PyTorch's runs.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial

from zerosim.autograd.graph import GraphPlan, Instruction, Step

Results = tuple[frozenset[int], frozenset[int]]
"""The slots of kept values, and the slots of outputs whose operations' saved arrays are kept."""


def is_product(instruction: Instruction) -> bool:
    return instruction.operation.multiplications is not None


def is_attention(instruction: Instruction) -> bool:
    """Whether it is a matrix product without weights."""
    return is_product(instruction) and "weight" not in instruction.inputs


def products(plan: GraphPlan, every: int = 1) -> Results:
    """The results of attention and of all products with weights, or of `every` so many, beginning with the first.

    Every other one, `half_products`, is torchtitan's choice.
    """
    attention, weighted = list[int](), list[int]()
    for instruction in filter(is_product, plan.graph.instructions):
        (attention if is_attention(instruction) else weighted).append(instruction.output)
    slots = frozenset([*attention, *weighted[::every]])
    return slots, slots


def all_but_attention(plan: GraphPlan) -> Results:
    """All values of backward except the array that attention saves: Megatron's selective recomputation of attention's
    core.

    Korthikanti et al., "Reducing activation recomputation in large transformer models" (2022), section 5.
    """
    saved = frozenset(
        instruction.output for instruction in plan.graph.instructions if not is_attention(instruction))
    return plan.kept - {plan.graph.input.slot}, saved


SELECTIONS: dict[str, Callable[[GraphPlan], Results]] = {
    "products": products, "half_products": partial(products, every=2), "all_but_attention": all_but_attention,
}


@dataclass(frozen=True, eq=False)
class SelectedPlan:
    """A plan whose forward keeps chosen results, and the steps that recompute the others.

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
    """The plan for backward, which determines the values to recompute."""
    keeps: str
    """A key of `SELECTIONS`; empty to keep the input alone."""

    @cached_property
    def forward(self) -> GraphPlan:
        """The plan of the first forward, with the results that it keeps."""
        values, saved = SELECTIONS[self.keeps](self.plan) if self.keeps else (frozenset(), frozenset())
        return GraphPlan(self.plan.graph, of_parameters=False, of_input=False, chosen=values, saving=saved)

    @cached_property
    def again(self) -> tuple[Step, ...]:
        """The steps of recomputation, in order; each frees values that no later step and no backward reads."""
        if not self.keeps:
            return self.plan.steps
        values, saved = self.forward.chosen, self.forward.saving
        wanted, steps, last = set(self.plan.kept - values), list[Step](), set[int]()
        for step in reversed(self.plan.steps):
            output, inputs = step.instruction.output, set(step.instruction.inputs.values())
            lacks = step.wanted and step.instruction.operation.saves and output not in saved
            if output not in wanted and not lacks:
                continue
            ending = inputs - last - self.plan.kept - self.plan.parameters - {self.plan.graph.output.slot}
            steps.append(replace(step, done=tuple(sorted(ending))))
            last |= inputs
            wanted |= inputs - values
        return tuple(reversed(steps))
