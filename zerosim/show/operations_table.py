"""The arrays that each operation keeps for backward, and its costs in a plan, found by running it on shapes.

    keeps      arrays kept from forward to backward, without parameters (`weight`, `bias`), which are passed again
    products   floating-point operations of matrix products; a multiplication and an addition count as 2
    moves      bytes read and written, each number once

All numbers are float32 here and indices int64. The figures are not declared by hand: the operation itself runs on
shapes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from zerosim.autograd.differences import PARAMETERS
from zerosim.autograd.graph import Graph, GraphPlan, Step
from zerosim.autograd.operation import Into, Operation, Shape
from zerosim.autograd.operations.shapes import reshape
from zerosim.autograd.operations.table import EXAMPLES, OPERATIONS, OperationExample
from zerosim.core.errors import UsageError
from zerosim.core.extents import Extent, owner
from zerosim.core.parts.loading import load_file
from zerosim.plan.costs import moved_bytes
from zerosim.show.grid import Column, show_grid, show_words
from zerosim.show.shown import Shown

ITEMSIZE = np.dtype(np.float32).itemsize
FIGURES = {
    "kept_bytes": "bytes", "forward_products": "operations\nforward", "backward_products": "\nbackward",
    "forward_moves": "bytes moved\nforward", "backward_moves": "\nbackward"}
"""The figures of the table, with their headings."""
NOTE = (
    "keeps: from forward to backward; y is the output, saved the extra results of forward; weight and bias are not "
    "kept but passed again. Operations: floating-point operations of matrix products; a plan charges all other "
    "operations by the bytes that they move, each element once.")


@dataclass(frozen=True)
class OperationFigures:
    """The figures of one operation on one example."""

    name: str
    formula: str
    """The first line of forward's docstring."""
    inputs: dict[str, Shape]
    settings: dict[str, Any]
    output: Shape
    gradients: tuple[str, ...]
    """The inputs that have a gradient."""
    keeps: tuple[str, ...]
    """The arrays that backward needs: inputs, `y` for the output, `saved` for what forward saves."""
    kept_bytes: int
    forward_products: int
    backward_products: int
    forward_moves: int
    backward_moves: int


def declared(names: Mapping[str, Any]) -> dict[str, tuple[Operation, OperationExample | None]]:
    """The operations that a file itself declares, each with its example in the file's `EXAMPLES`."""
    examples = names.get("EXAMPLES", {})
    return {name: (each, examples.get(name)) for name, each in names.items()
            if isinstance(each, Operation) and each.forward.__module__ == names["__name__"]}


def figures(operation: Operation, example: OperationExample) -> OperationFigures:
    """The figures of an operation from forward and backward on shapes; raises the errors of both.

    >>> from zerosim.autograd.operations.linear import linear
    >>> found = figures(linear, ((4, 16), (8, 16)))
    >>> found.keeps, found.kept_bytes, found.forward_products, found.backward_products
    (('x',), 256, 1024, 2048)
    """
    settings: dict[str, Any] = next((each for each in example if isinstance(each, dict)), {})
    arrays: dict[str, Any] = {
        name: Extent(each.shape, each.dtype) if isinstance(each, np.ndarray) else Extent(tuple(each), np.float32)
        for name, each in zip(operation.inputs, example, strict=False) if not isinstance(each, dict)}
    shapes = {name: each.shape for name, each in arrays.items()}
    step = step_of(operation, shapes, settings)
    given = settings | ({"draws": None} if operation.draws else {})
    empty: Any = Extent
    made = operation.forward(*arrays.values(), empty=empty, **given)
    y, saved = made if operation.saves else (made, None)
    read = {name: each for name, each in (arrays | {"y": y}).items() if name in step.needed}
    read |= {"saved": saved} if operation.saves else {}
    if operation.backward is not None and step.wanted:
        into = Into({name: shapes[name] for name in step.wanted}, lambda name: empty(shapes[name], np.float32))
        operation.backward(empty(y.shape, np.float32), into, empty=empty, **read, **given)
    kept = {name: owner(each) for name, each in read.items() if name not in PARAMETERS}
    return OperationFigures(
        name=operation.name, formula=(operation.forward.__doc__ or "").partition("\n")[0], inputs=shapes,
        settings=settings, output=step.shape, gradients=step.wanted, keeps=tuple(kept),
        kept_bytes=sum({id(each): each.nbytes for each in kept.values()}.values()),
        forward_products=step.forward_operations, backward_products=step.backward_operations,
        forward_moves=0 if step.is_view else moved_bytes(step, "forward", ITEMSIZE),
        backward_moves=0 if {*step.wanted} <= {*operation.passes} else moved_bytes(step, "backward", ITEMSIZE))


def step_of(operation: Operation, shapes: Mapping[str, Shape], settings: Mapping[str, Any]) -> Step:
    """The step of a graph of this operation: the first input is the graph's, others are parameters or stand for values.
    """
    first, *others = shapes
    graph = Graph(shapes[first])
    values = [graph.input]
    for name in others:
        parameter = graph.parameter(name, shapes[name])
        values.append(parameter if name in PARAMETERS else reshape(parameter, shape=parameter.shape))
    graph.output = operation(*values, **settings)
    return GraphPlan(graph, of_parameters=True, of_input=True).steps[-1]


def show_operations(console: Console, found: Sequence[OperationFigures]) -> None:
    """Print a line of figures for each operation, then its formula and its example."""
    show_grid(console, [operation.name for operation in found], [
        Column("keeps", [", ".join(operation.keeps) or "–" for operation in found], to_the_left=True),
        *(Column(heading, [f"{getattr(operation, name):,}" for operation in found])
          for name, heading in FIGURES.items())])
    show_words(console, NOTE, style="dim")
    for operation in found:
        settings = [f"{name}={value}" for name, value in operation.settings.items()]
        shapes = [f"{name} {shape}" for name, shape in operation.inputs.items()]
        console.print(Text.assemble((operation.name, "bold"), "  ", (
            f"{', '.join([*shapes, *settings])} → {operation.output}", "dim")), soft_wrap=True)
        show_words(console, operation.formula, key="    ")


def operations_of(path: str | None) -> Shown:
    """The figures of the public operations, or of those of a file that have examples; a row for each."""
    if path is None:
        found = {name: (each, EXAMPLES[name]) for name, each in OPERATIONS.items()}
    else:
        found = {name: (each, example) for name, (each, example) in declared(vars(load_file(path))).items() if example}
        if not found:
            raise UsageError(f"{path} declares no operation for which its EXAMPLES has shapes")
    operations = tuple(figures(each, example) for each, example in found.values())
    return Shown(
        operations, True, "", f"<{len(operations)} operations: {', '.join(each.name for each in operations)}>",
        show=lambda console: show_operations(console, operations),
        make_document=lambda: {"schema": "zerosim.operations/1", "operations": [asdict(each) for each in operations]},
        rows_of=lambda document: list(document["operations"]))
