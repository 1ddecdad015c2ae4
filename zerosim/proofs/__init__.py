"""Proofs of collectives on symbols, and checks of a user's parts; an exercise is a part without a body.

    proofs/     the sum that each rank holds, as a tree; causes of wrong ones; scenarios of collectives
    checks/     what each kind of part promises; the first call in which a stage differs
    pages       the lessons as HTML
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zerosim.collectives import Algorithm
    from zerosim.models.units import ModelKind
    from zerosim.show.shown import Shown
    from zerosim.stages import Stage
    from zerosim.stages.optimizers import Optimizer


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
    from zerosim.proofs.notebook import proved  # noqa: PLC0415

    return proved(collective, ranks, claims)


def check(part: "str | Algorithm | Stage | Optimizer | ModelKind | Callable[..., Any]") -> "Shown":
    """The check of a part: all that its kind and its declarations promise. `FILE.py:NAME` is loaded first.

    Raises `UsageError` for an object that is no part.

    >>> import zerosim as zs
    >>> def all_gather(comm, chunks): raise NotImplementedError
    >>> zs.check(all_gather)
    <check of __main__:all_gather: not yet written>
    """
    from zerosim.proofs.notebook import checked_part  # noqa: PLC0415

    return checked_part(part)
