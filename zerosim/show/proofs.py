"""Proofs and checks for the terminal, the Python prompt and notebooks, in the words of `zerosim prove` and `check`.

A proof shows the ranks' sums, what was proved, and the cause of a fault.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from zerosim.autograd.operation import Operation
from zerosim.autograd.tape_collectives import TAPE_COLLECTIVES
from zerosim.collectives import Algorithm
from zerosim.core.errors import UsageError
from zerosim.core.parts import Loader, is_python, named
from zerosim.core.words import by_key, plural
from zerosim.plan.operations import OperationFigures
from zerosim.plan.reading import numbers_of_ranks
from zerosim.proofs.cause import diagnosis
from zerosim.proofs.claim import CheckedPart
from zerosim.proofs.parts import checked
from zerosim.proofs.proof import Proof, proofs_of
from zerosim.proofs.subject import Subject, subject_on_hosts
from zerosim.show.grid import Column, show_grid, show_words
from zerosim.show.shown import Shown
from zerosim.training.transposes import first_fault, law_of

MOST_TRANSPOSED_RANKS = 16
"""The most ranks of a proof: both sides are computed for every two of them."""
SHOWN = 8
"""The most ranks for which the sums are printed."""
OPERATION_FIGURES = {
    "kept_bytes": "bytes", "forward_products": "operations\nforward", "backward_products": "\nbackward",
    "forward_moves": "bytes moved\nforward", "backward_moves": "\nbackward"}
"""The figures of the table, with their headings."""
ABOUT_OPERATIONS = (
    "keeps: from forward to backward; y is the output, saved the extra results of forward; weight and bias are not "
    "kept but passed again. Operations: floating-point operations of matrix products; a plan charges all other "
    "operations by the bytes that they move, each element once.")


def proved(
    collective: str | Algorithm | Callable[..., Any], ranks: int | Iterable[int], claims: str | None,
    ranks_per_host: int | None = None, elements: Sequence[int] | None = None,
) -> Shown:
    """The proofs of a named collective, or of a function, on each number of ranks, with vectors of so many `elements`.

    A row has `ranks`, `holds`, `order`, `cause`, `command`.
    """
    asked, loader = numbers_of_ranks(ranks), Loader()
    if not asked:
        raise UsageError("ranks: found none; give a number of ranks, or several")
    operation: Any = collective
    if isinstance(collective, str):
        operation = loader.load(collective).part if is_python(collective) else TAPE_COLLECTIVES.get(collective)
    if isinstance(operation, Operation):
        if claims or ranks_per_host or elements:
            raise UsageError("remove --as, --ranks-per-host and --elements: a collective on the tape has none of them")
        return shown_proofs(operation, asked)
    subject = subject_on_hosts(collective, claims, ranks_per_host, loader)
    proofs = proofs_of(subject, asked, elements)
    passed = all(proof.holds for proof in proofs)
    verdict = "proved" if passed else "not proved"
    return Shown(
        proofs, passed, verdict,
        f"<{subject.name} on {', '.join(str(proof.size) for proof in proofs)} ranks: {verdict}>",
        show=lambda console: show_proofs(console, subject, asked, proofs),
        make_document=lambda: {
            "schema": "zerosim.proof/1",
            "subject": subject.name,
            "collective": subject.collective,
            "proofs": [{
                "ranks": proof.size,
                "holds": proof.holds,
                "order": proof.order,
                "elements": proof.lengths,
                "sent": proof.sent and proof.sent._asdict(),
                "held": [[str(symbol) for symbol in held] for held in proof.held],
                "faults": [vars(fault) for fault in proof.faults],
                "cause": known and known.cause,
                "command": known and known.command,
            } for proof, known in zip(proofs, map(diagnosis, proofs), strict=True)]},
        rows_of=lambda document: [
            {key: proof[key] for key in ("ranks", "holds", "order", "sent", "cause", "command")}
            for proof in document["proofs"]])


def checked_part(part: Any) -> Shown:
    """The check of a part, of `FILE.py:NAME`, or of a function.

    A row, one for each claim, has `part`, `claim`, `state`, `complaint`.
    """
    if isinstance(part, str):
        if not is_python(part):
            raise UsageError(f"found {part!r}; give FILE.py:NAME, or a part")
        check = checked(part, Loader().load(part).part)
    else:
        check = checked(named(part).source, part)
    return Shown(
        check, check.holds, check.state, f"<check of {check.name}: {check.state}>",
        show=lambda console: show_check(console, check),
        make_document=lambda: {"name": check.name, "state": check.state, "claims": claims_of(check)},
        rows_of=lambda document: list(document["claims"]))


def claims_of(check: CheckedPart) -> list[dict[str, str | None]]:
    """Each claim as `zerosim check --json` writes it in a line."""
    return [{"part": check.name, "claim": claim.says, "state": claim.state, "complaint": claim.complaint}
            for claim in check.claims]


def show_check(console: Console, check: CheckedPart) -> None:
    """Print a line for each claim, below a failed one the complaint."""
    console.print(f"{check.name}: {check.state}", markup=False, soft_wrap=True)
    for claim in check.claims if check.state != "not yet written" else ():
        mark = {"holds": "✓", "does not hold": "✗"}.get(claim.state, "–")
        untried = " (not tried)" if claim.state == "not tried" else ""
        console.print(f"  {mark} {claim.says}{untried}", markup=False, soft_wrap=True)
        for line in (claim.complaint or "").splitlines():
            console.print(f"      {line}", markup=False, soft_wrap=not console.is_terminal)


def show_operations(console: Console, operations: Sequence[OperationFigures]) -> None:
    """Print a line of figures for each operation, then its formula and its example."""
    show_grid(console, [operation.name for operation in operations], [
        Column("keeps", [", ".join(operation.keeps) or "–" for operation in operations], to_the_left=True),
        *(Column(heading, [f"{getattr(operation, name):,}" for operation in operations])
          for name, heading in OPERATION_FIGURES.items())])
    show_words(console, ABOUT_OPERATIONS, style="dim")
    for operation in operations:
        settings = [f"{name}={value}" for name, value in operation.settings.items()]
        shapes = [f"{name} {shape}" for name, shape in operation.inputs.items()]
        console.print(Text.assemble((operation.name, "bold"), "  ", (
            f"{', '.join([*shapes, *settings])} → {operation.output}", "dim")), soft_wrap=True)
        show_words(console, operation.formula, key="    ")


def show_proofs(console: Console, subject: Subject, asked: Sequence[int], proofs: Sequence[Proof]) -> None:
    """Print the ranks' sums, for a single small proof; what was proved, and what was not tried."""
    lines = [line for proof in proofs for line in lines_of(proof, sums=len(proofs) == 1 and proof.size <= SHOWN)]
    served = [size for size in asked if subject.serves(size)]
    if served[len(proofs) :]:
        lines.append(f"not tried on {', '.join(map(str, served[len(proofs) :]))} ranks: it does not end")
    left_out = [str(size) for size in asked if size not in served]
    if left_out:
        row = subject.algorithm or subject.declared
        assert row is not None
        lines.append(f"not for {', '.join(left_out)} ranks: it serves {row.limit}")
    for line in lines:
        console.print(line, soft_wrap=not console.is_terminal)


def lines_of(proof: Proof, *, sums: bool) -> Iterator[str]:
    """In rich's markup the sum of each chunk on each rank, where ranks with equal sums share a paragraph; and a line
    for a proof that holds, or for each fault of one that does not."""
    groups = by_key((tuple(map(str, held)), rank) for rank, held in enumerate(proof.held if sums else ()))
    for sums_held, ranks in groups.items():
        yield f"[bold]rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}[/]"
        yield from (f"  chunk {chunk}  {symbol}" for chunk, symbol in enumerate(sums_held))
    if proof.holds:
        yield f"[green]proved[/] on {plural(proof.size, 'rank')}: {', '.join(proved_properties(proof))}"
        yield from [f"sends {proof.sent}"] if proof.sent is not None else []
    else:
        yield f"[red]not proved[/] on {plural(proof.size, 'rank')}:"
        for line in (*(fault.what for fault in proof.faults), *str(diagnosis(proof)).splitlines()):
            yield f"  {escape(line)}"


def proved_properties(proof: Proof) -> list[str]:
    """The proved properties, in words."""
    kind, order = proof.subject.kind, proof.order
    lengths = ", ".join(map(str, sorted(proof.lengths)))
    roots = ", from every root" if kind.rooted and proof.size <= 16 else ""
    even = " in equal chunks" * (proof.subject.even and not any(count % proof.size for count in proof.lengths))
    tried = f"with {lengths} elements{even}{roots}, also when sends wait for their receivers"
    if not kind.reducing:
        return ["every contribution arrives at its place", "nothing else does", tried]
    named = ("no named order" if order is None else "the declared order" if order == "declared" else
             order if order.endswith("order") else f"the order of the {order}")
    return ["every contribution arrives exactly once", f"added in {named}",
            *(["the same on every rank"] if kind.agreeing else []), tried]


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
