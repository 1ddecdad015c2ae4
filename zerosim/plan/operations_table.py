"""The table of operations in the terminal: formula, kept arrays, matrix products and moved bytes."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.text import Text

from zerosim.plan.operations import OperationFigures
from zerosim.show.grid import show_words
from zerosim.words import joined

NOTES = (
    "keeps: from forward to backward; y is the output, saved the extra results of forward; weight and bias are not "
    "kept but passed again",
    "operations: floating-point operations of matrix products; a plan charges all other operations by the bytes they "
    "move",
    "moves: bytes read and written, each element once",
)


def show_operations(console: Console, found: Iterable[OperationFigures]) -> None:
    """Print three lines for each operation: its formula, its example, and the example's figures."""
    for each in found:
        console.print(Text.assemble((each.name, "bold"), "  ", (example(each), "dim")), soft_wrap=True)
        show_words(console, each.formula, key="    ")
        show_words(console, in_words(each), key="    ", style="dim")
    for note in NOTES:
        show_words(console, note, style="dim")


def example(each: OperationFigures) -> str:
    """Its inputs, their shapes, its settings, and the shape of y."""
    inputs = [f"{name} {shape}" for name, shape in each.inputs.items()]
    settings = [f"{name}={value}" for name, value in each.settings.items()]
    return f"{', '.join([*inputs, *settings])} → {each.output}"


def in_words(each: OperationFigures) -> str:
    """
    >>> from zerosim.autograd.operations.linear import linear
    >>> from zerosim.plan.operations import figures
    >>> in_words(figures(linear, ((4, 16), (8, 16))))
    'gradients of x and weight; keeps x: 256 B; operations: 1,024, backward 2,048; moves 896 B, backward 1,664 B'
    """
    phrases = [f"gradients of {joined(each.gradients)}" if each.gradients else "no gradient"]
    if each.gradients:
        phrases.append(f"keeps {joined(each.keeps)}: {each.kept_bytes:,} B" if each.keeps else "keeps nothing")
    if each.forward_products:
        phrases.append(f"operations: {each.forward_products:,}, backward {each.backward_products:,}")
    backward = f", backward {each.backward_moves:,} B" if each.backward_moves else ""
    phrases.append(f"moves {each.forward_moves:,} B{backward}" if each.forward_moves else "a view: moves nothing")
    return "; ".join(phrases)


def rows(found: Iterable[OperationFigures]) -> list[dict[str, Any]]:
    """A plain dict for each operation."""
    return [asdict(each) for each in found]
