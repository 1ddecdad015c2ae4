"""A user's collective on numbers: a proof on symbols cannot see in which dtype it adds, or what it does to a NaN.

It is tried on every dtype, on `SIZES` ranks, on a short vector and on a long one, whose elements are of the kinds of
`proofs/values.py` in turn. Where numbers are added, the due sum is that of the declared order, computed plainly; or
without a declaration, and for maximum and minimum, elements are of those kinds whose sums are the same in every order.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from zerosim.core.allocation import Array
from zerosim.core.comm import Communicator
from zerosim.core.sharding import Chunks, split
from zerosim.proofs.subject import Subject
from zerosim.proofs.values import DTYPES, FLOATS, ONE_SUM, WIDE, alphabet, same_numbers
from zerosim.worlds.local import spawn

SIZES = (1, 2, 3, 5, 8)
LONG = 1031
"""The elements of a long vector, not a multiple of any number of ranks but one."""
REDUCTIONS = (np.add, np.maximum, np.minimum)


def wrong_on_numbers(examined: Subject, sizes: Sequence[int]) -> str | None:
    """The first element that is not as due, or the first result that is its argument's memory, in words."""
    reductions = REDUCTIONS if examined.takes_reduction else (np.add,)
    for size in [size for size in SIZES if size in sizes]:
        for count in (2 * size if examined.even else 2 * size + 1, LONG // size * size if examined.even else LONG):
            for dtype in dict.fromkeys((*FLOATS, *WIDE)):
                for reduce in reductions:
                    if words := Trial(examined, size, count, dtype, reduce).difference():
                        named = "" if reduce is np.add else f" with reduce=np.{reduce.__name__}"
                        return f"on {size} ranks, {count} × {dtype}{named}: {words}"
    return None


@dataclass
class Trial:
    """One call on all ranks."""

    examined: Subject
    size: int
    count: int
    dtype: str
    reduce: Any
    complaints: list[str] = field(default_factory=list)

    @property
    def order(self) -> Callable[[Sequence[Array], int], Array] | None:
        """The declared order, if it is one of this reduction."""
        row = self.examined.declared
        return row.order if row is not None and self.reduce is np.add else None

    def vectors(self) -> list[Array]:
        """A vector for each rank, whose elements are of all kinds in turn: those of an element are of one."""
        one_sum = self.examined.kind.reducing and self.order is None
        kinds = [kind for kind in (*ONE_SUM, *(() if one_sum else ("cancelling", "random", "special")))
                 if self.dtype in DTYPES.get(kind, FLOATS)]
        rank, element = np.ogrid[: self.size, : self.count]
        vectors = np.empty((self.size, self.count), self.dtype)
        for number, kind in enumerate(kinds):
            table = alphabet(kind, self.dtype)
            drawn = table[(37 * rank + 11 * (element // len(kinds)) + 5 * rank * element) % len(table)]
            vectors[:, number :: len(kinds)] = drawn[:, number :: len(kinds)]
        return list(vectors)

    def difference(self) -> str | None:
        vectors, kind = self.vectors(), self.examined.kind

        def program(comm: Communicator) -> Array:
            vector = vectors[comm.rank].copy()
            examined = replace(self.examined, function=self.watched)
            examined(comm, vector, 0, *[self.reduce] * self.examined.takes_reduction)
            return vector

        with np.errstate(all="ignore"):
            held = spawn(program, self.size)
            for rank in range(self.size):
                for chunk in kind.filled(rank, self.size, 0):
                    due, have = self.due(vectors, rank, chunk), split(held[rank], self.size)[chunk]
                    if not same_numbers(have, due, payloads=not kind.reducing):
                        wrong = [not same_numbers(have[at : at + 1], due[at : at + 1], payloads=not kind.reducing)
                                 for at in range(len(due))].index(True)
                        ours, theirs = str(have[wrong]), str(due[wrong])
                        return (f"rank {rank} has {ours} in element {wrong} of chunk {chunk}; expected {theirs}"
                                f"{' with other bits' * (ours == theirs)}")
        return next(iter(self.complaints), None)

    def due(self, vectors: Sequence[Array], rank: int, chunk: int) -> Array:
        """A chunk of a rank's result."""
        total: Array
        total, *others = contributions = self.examined.kind.contributions(vectors, rank, chunk, 0)
        if self.order is not None and others:
            return self.order(contributions, chunk)
        for other in others:
            total = self.reduce(total, other)
        return total

    def watched(self, comm: Communicator, argument: Any, *rest: Any) -> Any:
        """The function, and a complaint about an argument that it changes or returns."""
        given = argument.flat if isinstance(argument, Chunks) else argument
        before = given.copy()
        returned = self.examined.function(comm, argument, *rest)
        if self.examined.keeps_argument and not same_numbers(given, before, payloads=True):
            self.complaints.append(f"its argument is changed on rank {comm.rank}")
        if isinstance(returned, np.ndarray) and returned.size and np.shares_memory(returned, given):
            self.complaints.append(f"the result on rank {comm.rank} is the memory of its argument; return a copy")
        return returned
