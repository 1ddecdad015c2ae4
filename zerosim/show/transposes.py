"""Collectives on the tape, proved and drawn: what `zerosim prove copy_to` and `zerosim show all_to_all` print."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from rich.console import Console

from zerosim.autograd.operation import Into, Operation, Shape
from zerosim.autograd.tape_collectives import TAPE_COLLECTIVES
from zerosim.core.errors import UsageError, ZerosimError
from zerosim.core.parts import Loader, is_python
from zerosim.core.terms import leaves, symbols
from zerosim.core.words import plural
from zerosim.observe.record import record
from zerosim.show.grid import Column, show_grid
from zerosim.show.shown import Shown
from zerosim.training.transposes import cases_of, first_fault, law_of, met

MOST_TRANSPOSED_RANKS = 16
"""The most ranks of a proof: both sides are computed for every two of them."""


def on_tape(subject: Any, loader: Loader) -> Operation | None:
    """A collective on the tape or a user's operation, by its name or as an object; None for anything else.

    >>> on_tape("copy_to", Loader()).name, on_tape("ring.all_reduce", Loader())
    ('copy_to', None)
    """
    if isinstance(subject, str):
        subject = loader.load(subject).part if is_python(subject) else TAPE_COLLECTIVES.get(subject)
    return subject if isinstance(subject, Operation) else None


def shown_proofs(operation: Operation, asked: Sequence[int]) -> Shown:
    """The transpose law of an operation with a direction, on each number of ranks.

    A row has `ranks` and `fault`. Raises `UsageError` for less than 2 and for more than `MOST_TRANSPOSED_RANKS` ranks.
    """
    if not 2 <= min(asked) <= max(asked) <= MOST_TRANSPOSED_RANKS:
        raise UsageError(f"an operation with a direction is proved on 2 to {MOST_TRANSPOSED_RANKS} ranks; over one it "
                         "is the identity")
    faults = {size: first_fault(operation, size) for size in asked}
    proofs = [{"ranks": size, "fault": fault, "holds": not fault} for size, fault in faults.items()]
    verdict = "not proved" if any(faults.values()) else "proved"

    def show(console: Console) -> None:
        for size, fault in faults.items():
            style = "[red]not proved[/]" if fault else "[green]proved[/]"
            console.print(f"{style} on {size} ranks: {fault or law_of(operation)}", soft_wrap=True)

    return Shown(
        proofs, verdict == "proved", verdict, f"<{operation.name} on {', '.join(map(str, asked))} ranks: {verdict}>",
        show=show, rows_of=lambda document: list(document["proofs"]),
        make_document=lambda: {"schema": "zerosim.transpose/1", "subject": operation.name, "proofs": proofs})


def shown_transpose(operation: Operation, size: int) -> Shown:
    """Forward of an operation on symbols, and its transpose: each rank's arrays before and after.

    A row, one for each rank and direction, has `pass`, `rank`, `before`, `after`.
    """
    fault = first_fault(operation, size) if size > 1 else None
    _, settings = next(cases_of(operation, size))
    try:  # the smallest vector that it accepts
        shape: Shape = (1,)
        due = operation.on_shapes([shape], settings)[0].shape
    except ZerosimError:
        shape = (size,)
        due = operation.on_shapes([shape], settings)[0].shape

    def forward(comm: Any, x: Any) -> Any:
        return operation.forward(x, empty=np.empty, **met(settings, comm))

    def backward(comm: Any, upstream: Any) -> Any:
        assert operation.backward is not None
        into = Into({"x": shape}, lambda name: np.empty(shape, upstream.dtype))
        operation.backward(upstream, into, empty=np.empty, **met(settings, comm))
        return into["x"]

    def vectors(name: str, count: int) -> list[Any]:
        return [symbols(0 if name in operation.alike else rank, count) for rank in range(size)]

    passes = [drawn(forward, "x", "y", vectors("x", shape[0])), drawn(backward, "∂y", "∂x", vectors("y", due[0]))]
    verdict = f"FAILED: {fault}" if fault else f"PASSED: {law_of(operation)}"

    def show(console: Console) -> None:
        for drawing in passes:
            cost = f"{plural(drawing['rounds'], 'round')}, {plural(drawing['messages'], 'message')}"
            console.print(f"{drawing['pass']}, {cost}", style="bold")
            show_grid(console, [f"  rank {rank}" for rank in range(size)], [
                Column(drawing[key], [" ".join(row) for row in drawing[side]], to_the_left=True)
                for key, side in (("from", "before"), ("to", "after"))])
        console.print(verdict, style="red" if fault else "green", soft_wrap=True)

    return Shown(
        operation, fault is None, verdict, f"<{operation.name} on {plural(size, 'rank')}: {verdict}>", show=show,
        make_document=lambda: {"schema": "zerosim.transpose_drawing/1", "subject": operation.name, "ranks": size,
                               "passes": passes, "fault": fault},
        rows_of=lambda document: [
            {"pass": drawing["pass"], "rank": rank, "before": before, "after": after} for drawing in document["passes"]
            for rank, (before, after) in enumerate(zip(drawing["before"], drawing["after"], strict=True))])


def drawn(program: Callable[..., Any], given: str, made: str, vectors: Sequence[Any]) -> dict[str, Any]:
    """One pass on symbols: each rank's elements before and after, with the numbers of messages and rounds.

    Raises `UsageError` for code that does not run on symbols, which can only be moved and added.
    """
    before, alike = [vector.tolist() for vector in vectors], len({vector[0] for vector in vectors}) == 1 < len(vectors)
    recording = record(program, vectors)
    if recording.results is None:
        raise UsageError(f"{program.__name__} does not run on symbols ({recording.failure}); zerosim prove runs it on "
                         "integers")

    def texts(arrays: Sequence[Any]) -> list[list[str]]:
        return [["+".join(f"{given}{'' if alike else leaf.rank}[{leaf.element}]" for leaf in leaves(symbol))
                 for symbol in array] for array in arrays]

    return {"pass": program.__name__, "from": given, "to": made, "rounds": recording.rounds,
            "messages": len(recording.messages), "before": texts(before), "after": texts(recording.results)}
