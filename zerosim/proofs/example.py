"""A collective on numbers: examples of a call, what a function does in them, and whether it is right in every dtype.

A proof on symbols cannot see in which dtype a function adds, or what it does to a NaN. So it is tried on every dtype,
on `SIZES` ranks, on a short vector and on a long one, whose elements are of the kinds of `proofs/values.py` in turn.
Where numbers are added, the due sum is that of the declared order, computed plainly; or without a declaration, and for
maximum and minimum, elements are of those kinds whose sums are the same in every order.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from zerosim.collectives.kinds import CollectiveKind
from zerosim.core.allocation import Array
from zerosim.core.comm import Communicator, Reduction
from zerosim.core.orders import AddingOrder
from zerosim.core.sharding import Chunks, split
from zerosim.core.words import plural
from zerosim.observe.observed import Observed
from zerosim.observe.traffic import Traffic
from zerosim.proofs.ended import endless_loop, raised
from zerosim.proofs.proof import LIMIT_SECONDS
from zerosim.proofs.subject import Subject
from zerosim.proofs.values import DTYPES, FLOATS, ONE_SUM, WIDE, in_turn, same_numbers
from zerosim.worlds.local import Sends, spawn

SIZES = (1, 2, 3, 5, 8)
LONG = 1031
"""The elements of a long vector, not a multiple of any number of ranks but one."""
REDUCTIONS = (np.add, np.maximum, np.minimum)


@dataclass(frozen=True, eq=False)
class Example:
    """A flat vector for each rank, of one length and dtype, and the arguments of the collective.

    `seed` fixes the order in which the ranks of the local world take turns, `sends` whether a send there waits.
    """

    vectors: tuple[Array, ...]
    root: int = 0
    reduce: Reduction = np.add
    seed: int = 0
    sends: Sends = "buffered"
    later_seconds: int = 0
    """By how much the clocks of the call are ahead."""
    calls_again: bool = False
    """Whether the function is called a second time, with zeros, before its first result is examined."""

    @property
    def size(self) -> int:
        return len(self.vectors)

    @property
    def count(self) -> int:
        """The number of elements in each vector."""
        return len(self.vectors[0])

    def but(self, vectors: Sequence[Array]) -> "Example":
        """The example with other vectors."""
        return replace(self, vectors=tuple(vectors))

    def due(self, kind: CollectiveKind, order: AddingOrder | None = None) -> list[Any]:
        """The result due of each rank, None for a rank without one; chunks are added by `order`, or reduced in turn."""
        results = list[Any]()
        for rank, vector in enumerate(map(np.empty_like, self.vectors)):
            for chunk in kind.filled(rank, self.size, self.root):
                contributions = kind.contributions(self.vectors, rank, chunk, self.root)
                split(vector, self.size)[chunk][...] = (
                    order(contributions, chunk) if order else functools.reduce(self.reduce, contributions))
            results.append(kind.left(vector, rank, self.size, self.root))
        return results


@dataclass(frozen=True)
class SeenRun:
    """One rank's result, the messages that it sent and received, and its argument before and after the call.

    `kept` is the returned array before and after a second call, if there was one.
    """

    result: Any
    sent_bytes: int
    messages: int
    received: int
    given: tuple[Array, Array] | None
    kept: tuple[Array, Array] | None = None
    shares: bool = False
    """Whether the returned array shares memory with the argument."""


def seen_run(subject: Subject, comm: Communicator, x: Example) -> SeenRun:
    """One rank's run of `subject` in the example."""
    traffic = Traffic()
    given, kept, shares = list[tuple[Array, Array]](), list[tuple[Array, Array]](), list[bool]()

    def watched(comm: Communicator, argument: Any, *rest: Any) -> Any:
        whole = argument.flat if isinstance(argument, Chunks) else argument
        before = whole.copy()
        returned = subject.function(comm, argument, *rest)
        given.append((before, whole.copy()))
        shares.append(isinstance(returned, np.ndarray) and bool(np.shares_memory(returned, whole)))
        if x.calls_again:
            first = returned.copy() if isinstance(returned, np.ndarray) else returned
            subject.function(comm, np.zeros_like(argument), *rest)
            if first is not None:
                kept.append((first, returned.copy()))
        return returned

    vector = x.vectors[comm.rank].copy()
    replace(subject, function=watched)(Observed(comm, traffic), vector, x.root, *[x.reduce] * subject.takes_reduction)
    left = subject.kind.left(vector, comm.rank, comm.size, x.root)
    return SeenRun(
        None if left is None else left.copy(), traffic.sent_bytes, traffic.messages, traffic.received_messages,
        given[0] if subject.keeps_argument else None, kept[0] if kept else None, shares[0])


# In every dtype.


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
