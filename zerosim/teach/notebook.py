"""Proofs and grades for the Python prompt and for notebooks, in the words of `zerosim prove` and `zerosim grade`."""

from collections.abc import Callable, Iterable
from typing import Any

from zerosim.collectives import Algorithm
from zerosim.errors import UsageError
from zerosim.jobs.proofs import asked_subject, on_tape, proofs_of
from zerosim.parts import Loader, code_of, is_python
from zerosim.plan.reading import numbers_of_ranks
from zerosim.show.shown import Shown
from zerosim.show.transposes import shown_proofs
from zerosim.teach.grading.exercises import Grade
from zerosim.teach.grading.parts import grade_named
from zerosim.teach.proofs.printed import document, show_proofs


def proved(
    collective: str | Algorithm | Callable[..., Any], ranks: int | Iterable[int], claims: str | None,
    ranks_per_host: int | None = None,
) -> Shown:
    """The proofs of a named collective, or of a function, on each number of ranks.

    A row has `ranks`, `holds`, `order`, `cause`, `command`, `remark`.
    """
    asked, loader = numbers_of_ranks([ranks] if isinstance(ranks, int) else list(ranks)), Loader()
    if (operation := on_tape(collective, loader)) is not None:
        if claims or ranks_per_host:
            raise UsageError("remove --as and --ranks-per-host: a collective on the tape has neither")
        return shown_proofs(operation, asked)
    found = asked_subject(collective, claims, ranks_per_host, loader)
    proofs = proofs_of(found, asked)
    passed = all(proof.holds for proof in proofs)
    verdict = "proved" if passed else "not proved"
    sizes = ", ".join(str(proof.size) for proof in proofs)
    return Shown(
        proofs, passed, verdict, f"<{found.name} on {sizes} ranks: {verdict}>",
        show=lambda console: show_proofs(console, found, asked, proofs),
        make_document=lambda: document(found, proofs),
        rows_of=lambda document: [
            {key: each for key, each in proof.items() if key not in ("held", "faults")} for proof in document["proofs"]
        ])


def graded(part: Any) -> Shown:
    """The grade of a part or a function, or of `FILE.py:NAME`; an exercise is known by its name.

    A row, one for each claim, has `says`, `state`, `points`, `earned`, `complaint`.
    """
    if isinstance(part, str):
        if not is_python(part):
            raise UsageError(f"found {part!r}; give FILE.py:NAME, or a function")
        return shown_grade(grade_named(part, Loader().load(part).value))
    name, _ = code_of(part)
    return shown_grade(grade_named(name, part))


def shown_grade(grade: Grade) -> Shown:
    """A grade that displays itself: its claims, its points, and a complaint about the first fault."""
    items = [{"says": item.says, "state": item.state, "points": item.points, "earned": item.earned,
              "complaint": item.complaint} for item in grade.items]
    lines = [f"{item.state:>15}  {item.says} ({item.earned} of {item.points})" for item in grade.items]
    text = "\n".join([f"{grade.function}: {grade.state}", *lines, *filter(None, [grade.complaint])])
    return Shown(
        grade, grade.complaint is None and grade.state != "not yet written", grade.state,
        f"<grade of {grade.function}: {grade.state}>",
        show=lambda console: console.print(text, markup=False, soft_wrap=True),
        make_document=lambda: {"schema": "zerosim.grade/1", "function": grade.function, "state": grade.state,
                               "complaint": grade.complaint, "items": items},
        rows_of=lambda document: list(document["items"]))
