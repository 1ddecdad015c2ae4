"""Proofs of a collective on several numbers of ranks, for the command line and Python."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from zerosim.autograd.operation import Operation
from zerosim.autograd.tape_collectives import TAPE_COLLECTIVES
from zerosim.collectives import Algorithm
from zerosim.collectives.kinds import COLLECTIVES
from zerosim.core.errors import UsageError
from zerosim.core.parts import Loader, is_python
from zerosim.proofs.proof import Proof, prove
from zerosim.proofs.subject import Subject, named_subject, subject, with_hosts
from zerosim.worlds.local import StillRunning

MOST_RANKS = 256
"""The most ranks of a proof, for which the ring takes half a minute and 0.8 GB; both grow with the cube."""


def on_tape(subject: Any, loader: Loader) -> Operation | None:
    """The collective on the tape, or a user's operation: itself or by its name; None for anything else.

    >>> on_tape("copy_to", Loader()).name, on_tape("ring.all_reduce", Loader())
    ('copy_to', None)
    """
    if isinstance(subject, str):
        subject = loader.load(subject).value if is_python(subject) else TAPE_COLLECTIVES.get(subject)
    return subject if isinstance(subject, Operation) else None


def asked_subject(
    collective: str | Algorithm | Callable[..., Any], claims: str | None, ranks_per_host: int | None = None,
    loader: Loader | None = None, stages: Sequence[str] = (),
) -> Subject:
    """A collective by its name, or a function.

    Raises `UsageError` for anything else; the message mentions `stages` if these are allowed too.
    """
    if isinstance(collective, str):
        found = named_subject(collective, claims, stages, loader)
    elif isinstance(collective, Algorithm) or callable(collective):
        found = subject(collective, claims)
    else:
        raise UsageError(f"found {collective!r}; give the name of an algorithm, FILE.py:FUNCTION, or a function")
    return with_hosts(found, ranks_per_host)


def proofs_of(subject: Subject, asked: Sequence[int]) -> list[Proof]:
    """A proof for each supported number of ranks; raises `UsageError` if there is none."""
    if subject.collective not in COLLECTIVES:
        raise UsageError(
            f"a {subject.collective} moves no data, so there is nothing to prove on symbols; zerosim show draws its "
            f"messages"
        )
    if max(asked) > MOST_RANKS:
        raise UsageError(f"a proof is on at most {MOST_RANKS} ranks, not {max(asked)}, since it keeps every rank's "
                         "vector after every message; give fewer ranks")
    served = [size for size in asked if subject.serves(size)]
    row = subject.algorithm or subject.declared
    if not served and row is not None:
        refused = ", ".join(map(str, asked))
        raise UsageError(f"{subject.name} serves {row.limit}, not {refused}; give different numbers of ranks")
    return list(until_one_never_ends(subject, served))


def until_one_never_ends(subject: Subject, sizes: Sequence[int]) -> Iterator[Proof]:
    """A proof for each number of ranks, until one does not end."""
    for size in sizes:
        proof = prove(subject, size)
        yield proof
        if proof.case and isinstance(proof.case.recording.failure, StillRunning):
            return
