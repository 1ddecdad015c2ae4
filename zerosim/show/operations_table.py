"""The arrays that each operation keeps for backward, and its costs in a plan, found by running it on shapes.

    keeps      arrays kept from forward to backward, without parameters (`weight`, `bias`), which are passed again
    products   floating-point operations of matrix products; a multiplication and an addition count as 2
    moves      bytes read and written, each number once

All numbers are float32 here and indices int64. The figures are not declared by hand: the operation itself runs on
shapes, by the player that runs it in a step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from zerosim.autograd.graph import Graph, GraphPlan, Step, Variable
from zerosim.autograd.operation import Operation, Shape
from zerosim.autograd.operations.shapes import reshape
from zerosim.autograd.operations.table import EXAMPLES, OPERATIONS, OperationExample
from zerosim.autograd.player import Contribution, Player, Precise
from zerosim.core.allocation import Kind
from zerosim.core.errors import UsageError
from zerosim.core.extents import Extent, owner
from zerosim.core.parts.loading import load_file
from zerosim.plan.costs import moved_bytes
from zerosim.show.grid import Column, show_grid, show_words
from zerosim.show.shown import Shown

PARAMETERS = ("weight", "bias")
"""Inputs with these names are parameters here."""

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


def extent(shape: int | Shape, dtype: Any, *, kind: Kind, owner: str) -> Any:
    """An `Extent`, which occupies no memory."""
    return Extent(shape, dtype)


def figures(operation: Operation, example: OperationExample) -> OperationFigures:
    """The figures of an operation from forward and backward on shapes; raises the errors of both.

    >>> from zerosim.autograd.operations.linear import linear
    >>> found = figures(linear, ((4, 16), (8, 16)))
    >>> found.keeps, found.kept_bytes, found.forward_products, found.backward_products
    (('x',), 256, 1024, 2048)
    """
    inputs, settings = given(operation, example)
    plan = GraphPlan(graph_of(operation, inputs, settings), of_parameters=True, of_input=True)
    kept_bytes = run(plan, inputs)
    step = plan.steps[-1]
    return OperationFigures(
        name=operation.name, formula=(operation.forward.__doc__ or "").partition("\n")[0],
        inputs={name: each.shape for name, each in inputs.items()}, settings=settings, output=step.shape,
        gradients=step.wanted,
        keeps=(*(name for name in step.needed if name not in PARAMETERS), *(["saved"] if operation.saves else [])),
        kept_bytes=kept_bytes, forward_products=step.forward_operations, backward_products=step.backward_operations,
        forward_moves=0 if step.is_view else moved_bytes(step, "forward", ITEMSIZE),
        backward_moves=moved_bytes(step, "backward", ITEMSIZE) if computes(step) else 0,
    )


def given(operation: Operation, example: OperationExample) -> tuple[dict[str, Extent], dict[str, Any]]:
    """The inputs by name, and the settings."""
    settings = next((each for each in example if isinstance(each, dict)), {})
    arrays = [
        Extent(each.shape, each.dtype) if isinstance(each, np.ndarray) else Extent(tuple(each), np.float32)
        for each in example if not isinstance(each, dict)
    ]
    return dict(zip(operation.inputs, arrays, strict=False)), settings


def graph_of(operation: Operation, inputs: dict[str, Extent], settings: dict[str, Any]) -> Graph:
    """A graph of this operation alone: the first input is the graph's, others are parameters or stand for values."""
    first, *others = inputs
    graph = Graph(inputs[first].shape)

    def variable(name: str) -> Variable:
        found = graph.parameter(name, inputs[name].shape)
        return found if name in PARAMETERS else reshape(found, shape=found.shape)

    graph.output = operation(graph.input, *map(variable, others), **settings)
    return graph


def run(plan: GraphPlan, inputs: dict[str, Extent]) -> int:
    """Run forward and backward; return the bytes kept in between."""
    first, *others = inputs
    parameters: Any = {name: inputs[name] for name in others}
    player = Player(plan, parameters, Precise(extent, ""), lambda _: None)
    x: Any = inputs[first]
    y, kept = player.forward(x)
    blocks = {id(owner(each)): owner(each) for each in (*kept.values.values(), *kept.saved.values())}
    views: Any = {name: Extent(inputs[name].shape, inputs[name].dtype) for name in others}
    values = sum(inputs[name].nbytes for name in plan.steps[-1].needed if name in others and name not in PARAMETERS)
    kept_bytes: int = values + sum(each.nbytes for each in blocks.values())
    upstream: Any = Extent(y.shape, np.float32)
    player.backward(kept, upstream, Contribution(upstream, views))
    return kept_bytes


def computes(step: Step) -> bool:
    """Whether backward computes anything, beyond passing gradients on."""
    operation = step.instruction.operation
    return any(name not in operation.passes for name in step.wanted)


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
