"""A user's collective on numbers: a proof on symbols cannot see in which dtype it adds, or what it does to a NaN.

It is tried on every dtype, on `SIZES` ranks, on a short vector and on a long one, whose elements are of the kinds of
`proofs/values.py` in turn. Where numbers are added, the due sum is that of the declared order, computed plainly; or
without a declaration, and for maximum and minimum, elements are of those kinds whose sums are the same in every order.
"""

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from zerosim.core.allocation import Array
from zerosim.core.words import plural
from zerosim.proofs.ended import endless_loop, raised
from zerosim.proofs.example import Example, seen_run
from zerosim.proofs.proof import LIMIT_SECONDS
from zerosim.proofs.subject import Subject
from zerosim.proofs.values import DTYPES, FLOATS, ONE_SUM, WIDE, in_turn, same_numbers
from zerosim.worlds.local import spawn

SIZES = (1, 2, 3, 5, 8)
LONG = 1031
"""The elements of a long vector, not a multiple of any number of ranks but one."""
REDUCTIONS = (np.add, np.maximum, np.minimum)


def wrong_on_numbers(subject: Subject, sizes: Sequence[int]) -> str | None:
    """The first element that is not as due, or the first result that is its argument's memory, in words."""
    reductions = REDUCTIONS if subject.takes_reduction else (np.add,)
    for size in [size for size in SIZES if size in sizes]:
        lengths = (2 * size, LONG // size * size) if subject.even else (2 * size + 1, LONG)
        for count, dtype, operation in product(lengths, dict.fromkeys((*FLOATS, *WIDE)), reductions):
            row = subject.declared
            order = row.order if row is not None and operation is np.add else None
            ordered = order is not None or not subject.kind.reducing
            kinds = (*ONE_SUM, "cancelling", "random", "special") if ordered else ONE_SUM
            x = Example(mixed(size, count, dtype, kinds), reduce=operation)
            with np.errstate(all="ignore"):
                if words := difference(subject, x, x.due(subject.kind, order)):
                    named = "" if operation is np.add else f" with reduce=np.{operation.__name__}"
                    return f"on {plural(size, 'rank')}, {count} × {dtype}{named}: {words}"
    return None


def mixed(size: int, count: int, dtype: str, kinds: Sequence[str]) -> tuple[Array, ...]:
    """A vector for each rank, whose elements are of all kinds of this dtype in turn: those of an element are of one."""
    kinds = [kind for kind in kinds if dtype in DTYPES.get(kind, FLOATS)]
    vectors = np.empty((size, count), dtype)
    for number, kind in enumerate(kinds):
        vectors[:, number :: len(kinds)] = in_turn(size, len(range(number, count, len(kinds))), dtype, kind)
    return tuple(vectors)


def difference(subject: Subject, x: Example, due: Sequence[Any]) -> str | None:
    """The exception, the first element of a rank's result that is not as due, or what is wrong with its argument."""
    payloads = not subject.kind.reducing
    try:
        runs = spawn(lambda comm: seen_run(subject, comm, x), x.size, limit_seconds=LIMIT_SECONDS)
    except Exception as error:
        return endless_loop(error, subject.file) or raised(error, subject.file)
    for rank, (run, wanted) in enumerate(zip(runs, due, strict=True)):
        for at in range(0 if wanted is None or same_numbers(run.result, wanted, payloads=payloads) else len(wanted)):
            if not same_numbers(run.result[at : at + 1], wanted[at : at + 1], payloads=payloads):
                ours, theirs = str(run.result[at]), str(wanted[at])
                return (f"rank {rank} has {ours} in element {at} of its result; expected {theirs}"
                        f"{' with other bits' * (ours == theirs)}")
    for rank, run in enumerate(runs):
        if run.given and not same_numbers(*run.given, payloads=True):
            return f"its argument is changed on rank {rank}"
        if run.shares:
            return f"the result on rank {rank} is the memory of its argument; return a copy"
    return None
