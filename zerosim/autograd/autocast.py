"""Autocast: float32 weights, and a dtype for each operation, as `torch.autocast` chooses it.

    products      in 16 bits: their inputs are cast, weights and biases too, and their outputs have 16 bits
    float32       softmax and norms: their inputs are cast to float32
    all others    in the dtype of their widest input, so that residual sums stay in float32

The lists are those of `torch.autocast("cuda")` (ATen's autocast_mode.h). On a CPU torch has neither norms nor softmax
in its list for float32; the results differ only for inputs of 16 bits. An operation with `multiplications` is a
product. Attention is one, as is torch's `scaled_dot_product_attention`: within it numbers have 32 bits, and the
softmax that it saves is rounded to 16. The loss is in float32 in any case.

A cast is an operation of the graph, so it is differentiated, kept, recomputed and counted like every other. A weight is
cast once in a segment, like torch's cache; the copy stays until backward, which reads it, as in torch. An activation is
cast for each product that reads it, as in torch. torch's cache also holds casts that backward does not read, those of
biases, until the forward pass ends; here they are freed after their product. A gradient has the dtype of its value: the
gradient of a cast weight is rounded to 16 bits, and then float32.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from zerosim.autograd.graph import Graph, GraphPlan, Instruction, Variable
from zerosim.autograd.operation import Empty, Into, Operation, copy_of
from zerosim.autograd.operations.attention import softmax
from zerosim.autograd.operations.normalization import layer_norm, rms_norm
from zerosim.core.allocation import Array


def cast_forward(x: Array, *, empty: Empty, dtype: np.dtype[Any]) -> Array:
    """y = x in this dtype, rounded to nearest.

    >>> cast_forward(np.array([1.0004]), empty=np.empty, dtype=np.dtype(np.float16))
    array([1.], dtype=float16)
    """
    return copy_of(x, empty, dtype)


def cast_backward(upstream: Array, into: Into, *, empty: Empty, dtype: np.dtype[Any]) -> None:
    """∂L/∂x = upstream, which the player rounds to the dtype of x."""
    into["x"] = upstream


cast = Operation(cast_forward, cast_backward, passes=("x",), moves=True)
FLOAT32 = np.dtype(np.float32)
IN_FLOAT32 = frozenset({softmax, layer_norm, rms_norm})
"""The operations whose inputs are cast to float32."""


@dataclass(frozen=True)
class Autocast:
    """A tape's policy: products in `low`, which has 16 bits.

    >>> from zerosim.autograd.operations.elementwise import relu
    >>> from zerosim.autograd.operations.linear import linear
    >>> graph = Graph((8, 3))
    >>> graph.output = relu(linear(graph.input, graph.parameter("weight", (3, 3)))) + graph.input
    >>> plan = Autocast(np.dtype(np.float16))(GraphPlan(graph, of_parameters=True, of_input=True), FLOAT32)
    >>> [(step.instruction.operation.name, step.dtype.name) for step in plan.steps]
    [('cast', 'float16'), ('cast', 'float16'), ('linear', 'float16'), ('relu', 'float16'), ('add', 'float32')]
    """

    low: np.dtype[Any]
    _plans: dict[tuple[GraphPlan, np.dtype[Any]], GraphPlan] = field(default_factory=dict, compare=False)

    def __call__(self, plan: GraphPlan, dtype: np.dtype[Any]) -> GraphPlan:
        """The plan with casts, for an input of this dtype; the same object for equal arguments."""
        key = plan, dtype
        if key not in self._plans:
            self._plans[key] = GraphPlan(with_casts(plan.graph, dtype, self.low), plan.of_parameters, plan.of_input)
        return self._plans[key]


def with_casts(graph: Graph, dtype: np.dtype[Any], low: np.dtype[Any]) -> Graph:
    """The graph for an input of this dtype and float32 parameters, in which every value has a dtype."""
    cast_graph = Graph(graph.input_shape, input_dtype=dtype)
    now = {graph.input.slot: cast_graph.input}
    for name, parameter in graph.parameters.items():
        now[parameter.slot] = cast_graph.parameter(name, parameter.shape, FLOAT32)
    weights = {parameter.slot for parameter in cast_graph.parameters.values()}
    casts = dict[tuple[int, np.dtype[Any]], Variable]()

    def given(slot: int, wanted: np.dtype[Any], like: Instruction) -> Variable:
        value = now[slot]
        if value.dtype in (wanted, np.int64):
            return value
        key = value.slot, wanted
        if key not in casts or value.slot not in weights:
            casts[key] = cast_graph.apply(cast, [value], {"dtype": wanted}, (like.layer, like.number), wanted)
        return casts[key]

    for line in graph.instructions:
        chosen = casts_to(line.operation, low)
        inputs = [now[slot] if chosen is None else given(slot, chosen, line) for slot in line.inputs.values()]
        numbers = [value.dtype for value in inputs if value.dtype not in (None, np.int64)]
        widest = max(filter(None, numbers), key=lambda dtype: dtype.itemsize, default=FLOAT32)
        of_output = np.dtype(np.int64) if line.output in graph.indices else chosen or widest
        now[line.output] = cast_graph.apply(
            line.operation, inputs, line.settings, (line.layer, line.number), of_output)
    cast_graph.output = now[graph.output.slot]
    return cast_graph


def casts_to(operation: Operation, low: np.dtype[Any]) -> np.dtype[Any] | None:
    """The dtype to which an operation's inputs are cast; None if they stay as they are."""
    if operation.multiplications is not None:
        return low
    return FLOAT32 if operation in IN_FLOAT32 else None
