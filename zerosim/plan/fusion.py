"""Graphs as a software runs them: the product with an activated gate as one kernel, and inputs gathered again.

Without it a Llama block keeps the gate, the activated gate and the other factor for backward; one kernel keeps the two
factors and activates the gate again in backward: `LigerSiLUMulFunction`, Megatron's `bias_swiglu` and compiled code.

With sequence parallelism a product's gathered input need not stay for backward: its piece does, and is gathered again.
Source: Korthikanti et al. (2022), section 4.2.2.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from zerosim.autograd.graph import Graph, GraphPlan
from zerosim.autograd.operation import Empty, Into, Operation
from zerosim.autograd.operations.elementwise import multiply, silu
from zerosim.autograd.operations.shapes import like
from zerosim.autograd.selection import is_product
from zerosim.autograd.tape import Policy
from zerosim.autograd.tape_collectives import gather_from
from zerosim.core.allocation import Array
from zerosim.plan.software import Software


def swiglu_forward(x: Array, other: Array, *, empty: Empty) -> Array:
    """y = x σ(x) · other; computes nothing, as plans have shapes only."""
    return like(x, empty)


def swiglu_backward(upstream: Array, into: Into, *, empty: Empty, x: Array, other: Array) -> None:
    """The gradients of both factors, one of them in the memory of `upstream`."""
    into["other"] = upstream


swiglu = Operation(swiglu_forward, swiglu_backward, {"x": ("x", "other"), "other": ("x", "other")})


@dataclass(eq=False)
class Fused:
    """The tape's policy `inner`, and then what `software` fuses or gathers again."""

    inner: Policy
    software: Software
    _plans: dict[GraphPlan, GraphPlan] = field(default_factory=dict)
    _graphs: dict[Graph, Graph] = field(default_factory=dict)

    def __call__(self, plan: GraphPlan, dtype: np.dtype[Any]) -> GraphPlan:
        plan = self.inner(plan, dtype)
        if plan not in self._plans:
            if plan.graph not in self._graphs:
                self._graphs[plan.graph] = with_swiglu(plan.graph) if self.software.swiglu else plan.graph
            graph = self._graphs[plan.graph]
            remade = gathered_inputs(graph) if self.software.gathers_again else frozenset()
            same = graph is plan.graph and not remade
            self._plans[plan] = plan if same else GraphPlan(graph, plan.of_parameters, plan.of_input, remade=remade)
        return self._plans[plan]


def gathered_inputs(graph: Graph) -> frozenset[int]:
    """The slots of gathered values that only products with weights read.

    >>> from zerosim.autograd.operations.linear import linear
    >>> from zerosim.autograd.tape_collectives import Direction
    >>> graph, tensor = Graph((2, 4, 3)), Direction("tensor", 2)
    >>> whole = gather_from(graph.input, group=tensor, axis=1)
    >>> graph.output = linear(whole, graph.parameter("w", (5, 3)))
    >>> gathered_inputs(graph) == {whole.slot}
    True
    """
    others = {slot for each in graph.instructions if "weight" not in each.inputs or not is_product(each)
              for slot in each.inputs.values()} | {graph.output.slot}
    return frozenset(each.output for each in graph.instructions if each.operation is gather_from) - others


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
