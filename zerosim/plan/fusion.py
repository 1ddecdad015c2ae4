"""Operations that a software's kernels compute together: the product with an activated gate, as one kernel.

Without it a Llama block keeps the gate, the activated gate and the other factor for backward; one kernel keeps the two
factors and activates the gate again in backward: `LigerSiLUMulFunction`, Megatron's `bias_swiglu` and compiled code.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from zerosim.allocation import Array
from zerosim.autograd.graph import Graph, GraphPlan
from zerosim.autograd.operation import Empty, Operation
from zerosim.autograd.operations.elementwise import multiply, silu, two_alike
from zerosim.autograd.tape import Policy


def swiglu_forward(x: Array, other: Array, *, out: Array, empty: Empty) -> None:
    """y = x σ(x) · other; computes nothing, as plans have shapes only."""


def swiglu_backward(upstream: Array, into: dict[str, Array], *, empty: Empty, x: Array, other: Array) -> None:
    """The gradients of both factors, one of them in the memory of `upstream`."""


swiglu = Operation(swiglu_forward, swiglu_backward, two_alike, {"x": ("x", "other"), "other": ("x", "other")},
                   over_upstream="other")


@dataclass(eq=False)
class Fused:
    """The tape's policy `inner`, after which products with activated gates are one operation."""

    inner: Policy
    _plans: dict[GraphPlan, GraphPlan] = field(default_factory=dict)
    _graphs: dict[Graph, Graph] = field(default_factory=dict)

    def __call__(self, plan: GraphPlan, dtype: np.dtype[Any]) -> GraphPlan:
        plan = self.inner(plan, dtype)
        if plan not in self._plans:
            if plan.graph not in self._graphs:
                self._graphs[plan.graph] = with_swiglu(plan.graph)
            graph = self._graphs[plan.graph]
            self._plans[plan] = plan if graph is plan.graph else GraphPlan(graph, plan.of_parameters, plan.of_input)
        return self._plans[plan]


def with_swiglu(graph: Graph) -> Graph:
    """The graph with one operation for each silu that only a product reads, and for that product; itself without any.

    >>> graph = Graph((2, 3))
    >>> graph.output = silu(graph.input) * graph.input
    >>> [each.operation.name for each in with_swiglu(graph).instructions]
    ['swiglu']
    """
    readers = Counter(slot for each in graph.instructions for slot in each.inputs.values())
    readers[graph.output.slot] += 1
    gates = {each.output: each.inputs["x"] for each in graph.instructions
             if each.operation is silu and readers[each.output] == 1}
    gates = {each.inputs["x"]: gates[each.inputs["x"]] for each in graph.instructions
             if each.operation is multiply and each.inputs["x"] in gates}
    if not gates:
        return graph
    found = Graph(graph.input_shape, input_dtype=graph.input.dtype)
    now = {graph.input.slot: found.input}
    for name, parameter in graph.parameters.items():
        now[parameter.slot] = found.parameter(name, parameter.shape, parameter.dtype)
    for each in graph.instructions:
        if each.output in gates:
            continue
        operation = swiglu if each.operation is multiply and each.inputs["x"] in gates else each.operation
        inputs = [now[gates.get(slot, slot)] for slot in each.inputs.values()]
        now[each.output] = found.note(
            operation, inputs, each.settings, each.layer, each.number, graph.dtype(each.output))
    found.output = now[graph.output.slot]
    return found
