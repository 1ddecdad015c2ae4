"""Teaching: proofs of collectives on symbols, exercises and their grades, the pages of the course.

    proofs/     the sum that each rank holds, as a tree; causes of wrong ones; scenarios of collectives
    grading/    exercises: claims, diagnoses, learners' programs in processes of their own
    pages       the lessons as HTML
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zerosim.collectives import Algorithm
    from zerosim.models.units import ModelKind
    from zerosim.optim.optimizers import Optimizer
    from zerosim.show.shown import Shown
    from zerosim.stages import Stage


def prove(
    collective: "str | Algorithm | Callable[..., Any]", ranks: int | Iterable[int] = 4, *, claims: str | None = None
) -> "Shown":
    """The proofs of a collective on symbols, on `ranks` ranks or on each of `ranks`.

    `collective` and `claims` are as in `show`. Raises `UsageError` for an unknown name and for ranks that it does not
    support. A wrong collective raises nothing: its proofs have the faults.

    >>> import zerosim as zs
    >>> zs.prove("ring.all_reduce", ranks=range(2, 5))
    <ring.all_reduce on 2, 3, 4 ranks: proved>
    """
    from zerosim.teach.notebook import proved  # noqa: PLC0415

    return proved(collective, ranks, claims)


def grade(function: "str | Algorithm | Stage | Optimizer | ModelKind | Callable[..., Any]") -> "Shown":
    """The grade of a user's part, or of a function for an exercise, computed in this process.

    `function` is the function, the object that a decorator made from it, or `FILE.py:NAME`. One with the name of an
    exercise is graded as that; `zerosim grade` gives each learner's file a process of its own. Raises `UsageError` for
    an object that is no part.

    >>> import zerosim as zs
    >>> def all_gather(comm, chunks): raise NotImplementedError
    >>> zs.grade(all_gather)
    <grade of all_gather: not yet written>
    >>> def signs(g, *, t, h, a, b): g *= h.learning_rate
    >>> print(zs.grade(signs).document["complaint"].splitlines()[-1])
    it writes to the gradient g, which is read-only; use the scratch arrays a and b
    """
    from zerosim.teach.notebook import graded  # noqa: PLC0415

    return graded(function)
