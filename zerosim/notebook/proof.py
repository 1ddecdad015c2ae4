"""Proofs for the Python prompt and for notebooks, in the words of `zerosim prove`."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from zerosim.collectives import Algorithm
from zerosim.errors import UsageError
from zerosim.jobs.proofs import proofs_of
from zerosim.notebook.display import Bundle, printed
from zerosim.notebook.shown import Shown
from zerosim.planner.reading import numbers_of_ranks
from zerosim.proofs.proof import Proof
from zerosim.proofs.subject import Subject, named_subject, subject
from zerosim.report.proof_text import document, show_proofs


@dataclass(frozen=True, repr=False)
class ShownProofs(Shown):
    """The proofs of a collective on each requested number of ranks."""

    subject: Subject
    asked: list[int]
    proofs: list[Proof]

    @property
    def passed(self) -> bool:
        """Whether everything was proved."""
        return all(proof.holds for proof in self.proofs)

    @property
    def document(self) -> dict[str, Any]:
        """The proofs as `zerosim prove --json` writes them."""
        return document(self.subject, self.proofs)

    def rows(self) -> list[dict[str, Any]]:
        """A plain dict for each number of ranks: `ranks`, `holds`, `order`, `cause`, `command`, `remark`."""
        return [
            {key: each for key, each in proof.items() if key not in ("held", "faults")}
            for proof in self.document["proofs"]
        ]

    def __str__(self) -> str:
        return printed(lambda console: show_proofs(console, self.subject, self.asked, self.proofs), width=100)

    def __repr__(self) -> str:
        ranks = ", ".join(str(proof.size) for proof in self.proofs)
        return f"<{self.subject.name} on {ranks} ranks: {'proved' if self.passed else 'not proved'}>"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Bundle:
        return {"text/plain": str(self)}


def proved(
    collective: str | Algorithm | Callable[..., Any], ranks: int | Iterable[int], claims: str | None
) -> ShownProofs:
    """The proofs of a named collective, or of a function, on each number of ranks."""
    if not isinstance(collective, str | Algorithm) and not callable(collective):
        raise UsageError(f"found {collective!r}; give the name of an algorithm, FILE.py:FUNCTION, or a function")
    asked = numbers_of_ranks([ranks] if isinstance(ranks, int) else list(ranks))
    found = named_subject(collective, claims) if isinstance(collective, str) else subject(collective, claims)
    return ShownProofs(found, asked, proofs_of(found, asked))
