"""The arrays that each operation keeps for backward, and its costs in a plan, found by running it on shapes.

    keeps      arrays kept from forward to backward, without parameters (`weight`, `bias`), which are passed again
    products   floating-point operations of matrix products; a multiplication and an addition count as 2
    moves      bytes read and written, each number once

All numbers are float32 here and indices int64. The figures are not declared by hand: the operation itself runs on
shapes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from zerosim.autograd.differences import PARAMETERS
from zerosim.autograd.graph import Graph, GraphPlan, Step
from zerosim.autograd.operation import Into, Operation, Shape
from zerosim.autograd.operations.shapes import reshape
from zerosim.autograd.operations.table import OperationExample
from zerosim.core.extents import Extent, owner
from zerosim.plan.costs import moved_bytes

ITEMSIZE = np.dtype(np.float32).itemsize


@dataclass(frozen=True)
class OperationFigures:
    """The figures of one operation on one example."""

    name: str
    formula: str
    """The first line of forward's docstring."""
    inputs: dict[str, Shape]
    settings: dict[str, Any]
    output: Shape
    keeps: tuple[str, ...]
    """The arrays that backward needs: inputs, `y` for the output, `saved` for what forward saves."""
    kept_bytes: int
    forward_products: int
    backward_products: int
    forward_moves: int
    backward_moves: int


def figures(operation: Operation, example: OperationExample) -> OperationFigures:
    """The figures of an operation from forward and backward on shapes; raises the errors of both.

    >>> from zerosim.autograd.operations.linear import linear
    >>> of_linear = figures(linear, ((4, 16), (8, 16)))
    >>> of_linear.keeps, of_linear.kept_bytes, of_linear.forward_products, of_linear.backward_products
    (('x',), 256, 1024, 2048)
    """
    settings: dict[str, Any] = next((value for value in example if isinstance(value, dict)), {})
    arrays: dict[str, Any] = {
        name: Extent(value.shape, value.dtype) if isinstance(value, np.ndarray) else Extent(tuple(value), np.float32)
        for name, value in zip(operation.inputs, example, strict=False) if not isinstance(value, dict)}
    shapes = {name: array.shape for name, array in arrays.items()}
    step = step_of(operation, shapes, settings)
    given = settings | ({"draws": None} if operation.draws else {})
    empty: Any = Extent
    results = operation.forward(*arrays.values(), empty=empty, **given)
    y, saved = results if operation.saves else (results, None)
    read = {name: array for name, array in (arrays | {"y": y}).items() if name in step.needed}
    read |= {"saved": saved} if operation.saves else {}
    if operation.backward is not None and step.wanted:
        into = Into({name: shapes[name] for name in step.wanted}, lambda name: empty(shapes[name], np.float32))
        operation.backward(empty(y.shape, np.float32), into, empty=empty, **read, **given)
    kept = {name: owner(array) for name, array in read.items() if name not in PARAMETERS}
    return OperationFigures(
        name=operation.name, formula=(operation.forward.__doc__ or "").partition("\n")[0], inputs=shapes,
        settings=settings, output=step.shape, keeps=tuple(kept),
        kept_bytes=sum({id(array): array.nbytes for array in kept.values()}.values()),
        forward_products=step.forward_operations, backward_products=step.backward_operations,
        forward_moves=0 if step.is_view else moved_bytes(step, "forward", ITEMSIZE),
        backward_moves=0 if {*step.wanted} <= {*operation.passes} else moved_bytes(step, "backward", ITEMSIZE))


def step_of(operation: Operation, shapes: Mapping[str, Shape], settings: Mapping[str, Any]) -> Step:
    """The step of a graph of this operation: its first input is the graph's, others are parameters or values."""
    first, *others = shapes
    graph = Graph(shapes[first])
    values = [graph.input]
    for name in others:
        parameter = graph.parameter(name, shapes[name])
        values.append(parameter if name in PARAMETERS else reshape(parameter, shape=parameter.shape))
    graph.output = operation(*values, **settings)
    return GraphPlan(graph, of_parameters=True, of_input=True).steps[-1]
