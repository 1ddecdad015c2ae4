"""Laws of the collectives, each to be applied to a function in one line; `check` applies all that concern it.

A law is a function of an `Examined` and of an example `x`; it returns two sides, which must be equal, byte for byte.
One side is the function's, the other is computed by a proved algorithm of ours, or by NumPy. If the two may add in
different orders, the values are such that order does not matter (`ONE_SUM`); if nothing is added, or the order is
declared, values are of every kind, NaN included. Where numbers are added all NaNs are alike, see `values.py`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Unpack

import numpy as np

from zerosim.collectives.kinds import COLLECTIVE_KINDS, COLLECTIVES, CollectiveKind, of_everyone
from zerosim.core.comm import Communicator
from zerosim.core.sharding import bounds, split
from zerosim.proofs import strategies
from zerosim.proofs.clock import LATER_SECONDS
from zerosim.proofs.example import Example
from zerosim.proofs.law import Examined, Keywords, Law, Sides, law, under_examination
from zerosim.proofs.subject import Subject, named_subject
from zerosim.proofs.values import rounding_of
from zerosim.worlds.local import spawn


def those(such: Callable[[CollectiveKind], bool]) -> list[str]:
    """The collectives whose kind satisfies a condition."""
    return [name for name in COLLECTIVES if such(COLLECTIVE_KINDS[name])]


# Compositions: one collective equals two others in sequence.


@law("all_reduce", reductions=True, values=strategies.ONE_SUM)
def all_reduce_is_all_gather_after_reduce_scatter(examined: Examined, x: Example) -> Sides:
    """all-reduce is reduce-scatter, then all-gather"""
    return examined(x), ours(x, "ring.reduce_scatter", "ring.all_gather")


@law("all_reduce", reductions=True, values=strategies.ONE_SUM)
def all_reduce_is_broadcast_after_reduce(examined: Examined, x: Example) -> Sides:
    """all-reduce is reduce to one rank, then broadcast from there"""
    return examined(x), ours(x, "tree.reduce", "tree.broadcast")


@law("reduce_scatter", reductions=True, values=strategies.ONE_SUM)
def reduce_scatter_is_scatter_after_reduce(examined: Examined, x: Example) -> Sides:
    """reduce-scatter is reduce to one rank, then scatter from there"""
    return examined(x), ours(x, "tree.reduce", "tree.scatter")


@law("reduce", reductions=True, values=strategies.ONE_SUM)
def reduce_is_gather_after_reduce_scatter(examined: Examined, x: Example) -> Sides:
    """reduce is reduce-scatter, then gather on the root"""
    return examined(x), ours(x, "direct.reduce_scatter", "naive.gather")


@law("all_gather", values=strategies.BYTES)
def all_gather_is_broadcast_after_gather(examined: Examined, x: Example) -> Sides:
    """all-gather is gather on one rank, then broadcast from there"""
    return examined(x), ours(x, "tree.gather", "tree.broadcast")


@law("broadcast", values=strategies.BYTES)
def broadcast_is_all_gather_after_scatter(examined: Examined, x: Example) -> Sides:
    """broadcast is scatter from the root, then all-gather"""
    return examined(x), ours(x, "tree.scatter", "ring.all_gather")


# Inverses.


@law("scatter", values=strategies.BYTES)
def scatter_is_undone_by_gather(examined: Examined, x: Example) -> Sides:
    """gather after scatter returns the root's vector"""
    return ours(dealt(x, examined(x)), "tree.gather"), on_the_root(x, x.vectors)


@law("gather", values=strategies.BYTES)
def gather_undoes_scatter(examined: Examined, x: Example) -> Sides:
    """gather reverses scatter"""
    return examined(dealt(x, ours(x, "tree.scatter"))), on_the_root(x, x.vectors)


@law("all_to_all", values=strategies.BYTES)
def all_to_all_twice_is_nothing(examined: Examined, x: Example) -> Sides:
    """all-to-all twice returns the input"""
    return examined(x.but(examined(x))), x.vectors


@law("all_to_all", values=strategies.BYTES)
def all_to_all_transposes(examined: Examined, x: Example) -> Sides:
    """block s of rank r moves to block r of rank s"""
    blocks = np.stack(x.vectors).reshape(x.size, x.size, -1 if x.count else 0)
    return examined(x), list(blocks.swapaxes(0, 1).reshape(x.size, x.count))


# Symmetries.


@law(*COLLECTIVES)
def is_linear(examined: Examined, x: Example) -> Sides:
    """f(2x + 1) = 2 f(x) + f(1)"""
    ones = [np.ones_like(vector) for vector in x.vectors]
    of_both = examined(x.but([2 * vector + 1 for vector in x.vectors]))
    of_each = zip(examined(x), examined(x.but(ones)), strict=True)
    return of_both, [None if of_x is None else 2 * of_x + of_1 for of_x, of_1 in of_each]


@law(*those(lambda kind: kind.sources is of_everyone), reductions=True, values=strategies.ONE_SUM)
def ranks_may_be_permuted(examined: Examined, x: Example) -> Sides:
    """sums do not depend on which rank holds which vector"""
    permutation = np.random.default_rng(x.seed).permutation(x.size)
    return examined(x.but([x.vectors[rank] for rank in permutation])), examined(x)


@law(*those(lambda kind: kind.agreeing), values=(*strategies.ARITHMETIC, "special"))
def every_rank_holds_the_same_bytes(examined: Examined, x: Example) -> Sides:
    """the ranks agree to the last bit, the sign of 0 included; sums that are NaN are alike"""
    results = examined(x)
    return results, [results[0]] * x.size


# Declarations.


@law(*COLLECTIVES, values=strategies.BYTES, needs="an argument that is not worked on in place")
def inputs_stay_unchanged(examined: Examined, x: Example) -> Sides:
    """arguments are unchanged after the call"""
    given = [seen.given for seen in examined.seen(x)]
    return [pair and pair[1] for pair in given], [pair and pair[0] for pair in given]


@law(*COLLECTIVES, needs="an array that it returns")
def results_stay_as_they_are(examined: Examined, x: Example) -> Sides:
    """a result is unchanged after the next call"""
    seen = [run.kept for run in examined.seen(replace(x, calls_again=True))]
    return [pair and pair[1] for pair in seen], [pair and pair[0] for pair in seen]


@law(*COLLECTIVES, values=strategies.BYTES, needs="an array that it returns")
def results_have_memory_of_their_own(examined: Examined, x: Example) -> Sides:
    """a result shares no memory with the argument"""
    return [seen.shares for seen in examined.seen(x)], [False] * x.size


@law(*those(lambda kind: kind.reducing), values=("symbols", *strategies.ARITHMETIC, "full", "special"), needs="order=")
def adds_in_the_declared_order(examined: Examined, x: Example) -> Sides:
    """every chunk is added in the declared order"""
    assert examined.order is not None
    return examined(x), x.due(examined.subject.kind, examined.order)


@law(*those(lambda kind: kind.reducing), values=("random", "wide"))
def adds_within_the_rounding_of_any_order(examined: Examined, x: Example) -> Sides:
    """every sum is the exact one, within the rounding of any order of addition"""
    results, rounding = examined(x), rounding_of(x.vectors[0].dtype.name)
    wide, kind = [vector.astype(float) for vector in x.vectors], examined.subject.kind
    exact, sizes = (x.but(vectors).due(kind, exact_sum) for vectors in (wide, [*map(np.abs, wide)]))
    return results, [None if have is None else np.where(
        np.abs(have.astype(float) - due) <= x.size * rounding * size, have, due.astype(have.dtype))
        for have, due, size in zip(results, exact, sizes, strict=True)]


@law(*COLLECTIVES, values=("cancelling", "wide", "exact"))
def has_the_same_bytes_at_another_time(examined: Examined, x: Example) -> Sides:
    """a result depends neither on the clock nor on the ranks' turns, and another call has it again"""
    return examined(replace(x, seed=x.seed + 1, later_seconds=(x.seed + 1) * LATER_SECONDS)), examined(x)


@law(*COLLECTIVES)
def sends_no_fewer_bytes_than_any_can(examined: Examined, x: Example) -> Sides:
    """the ranks together send what any algorithm must: data passes in messages alone"""
    sent, least = sum(seen.sent_bytes for seen in examined.seen(x)), examined.subject.kind.least_chunks(x.size)
    due = least * (x.count // x.size) * x.vectors[0].itemsize
    return [f"{sent} bytes"] * x.size, [f"{max(sent, due)} bytes"] * x.size


@law(*COLLECTIVES, needs="sent_bytes=")
def sends_the_declared_bytes(examined: Examined, x: Example) -> Sides:
    """every rank sends the declared number of bytes"""
    assert examined.sent_bytes is not None
    lengths = [(stop - start) * x.vectors[0].itemsize for start, stop in bounds(x.count, x.size)]
    declared = [examined.sent_bytes(lengths, rank, x.root) for rank in range(x.size)]
    return [f"{seen.sent_bytes} bytes" for seen in examined.seen(x)], [f"{count} bytes" for count in declared]


@law(*COLLECTIVES, needs="messages=")
def sends_the_declared_messages(examined: Examined, x: Example) -> Sides:
    """every rank sends the declared number of messages"""
    assert examined.messages is not None
    declared = [examined.messages(rank, x.size, x.root) for rank in range(x.size)]
    return [f"{seen.messages} messages" for seen in examined.seen(x)], [f"{count} messages" for count in declared]


@law(*COLLECTIVES, needs="the local world, where a send can wait")
def works_when_sends_wait(examined: Examined, x: Example) -> Sides:
    """the result is the same if sends wait for their receivers, as MPI allows"""
    return examined(replace(x, sends="rendezvous")), examined(x)


LAWS: tuple[Law, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Law))
"""The table: each law with its name, its statement, and its collectives."""


def check(function: Callable[..., Any] | Subject, *, examples: int = 100, **keywords: Unpack[Keywords]) -> list[str]:
    """Test every law that concerns `function` on `examples` examples each, with these `Keywords`; their names.

    >>> from zerosim.collectives import ring
    >>> check(ring.all_gather, examples=20)  # doctest: +NORMALIZE_WHITESPACE
    ['all_gather_is_broadcast_after_gather', 'is_linear', 'every_rank_holds_the_same_bytes',
     'has_the_same_bytes_at_another_time', 'sends_no_fewer_bytes_than_any_can', 'sends_the_declared_bytes',
     'sends_the_declared_messages', 'works_when_sends_wait']

    Raises `LawBroken` for the first law that does not hold, `UsageError` if neither the name nor `collective` says
    which collective the function is.
    """
    __tracebackhide__ = True    # pytest shows the test and the message
    examined = under_examination(function, **keywords)
    chosen = [statement for statement in LAWS if statement.missing(examined) is None]
    for statement in chosen:
        statement(function, examples=examples, **keywords)
    return [statement.name for statement in chosen]


def ours(x: Example, *algorithms: str) -> list[Any]:
    """The result of each rank after algorithms of our table, one after the other."""
    steps = [named_subject(name) for name in algorithms]

    def program(comm: Communicator) -> Any:
        vector = x.vectors[comm.rank].copy()
        for step in steps:
            step(comm, vector, x.root, *[x.reduce] * step.kind.reducing)
        return steps[-1].kind.left(vector, comm.rank, comm.size, x.root)

    with np.errstate(all="ignore"):
        return spawn(program, x.size, seed=x.seed)


def exact_sum(contributions: Sequence[Any], chunk: int) -> Any:
    """The exact sums of float64, rounded once."""
    return np.array([math.fsum(terms) for terms in np.stack(contributions).T.tolist()], float)


def dealt(x: Example, pieces: Sequence[Any]) -> Example:
    """The example in which rank r holds `pieces[r]` as its chunk, and zeros elsewhere."""
    vectors = [np.zeros_like(vector) for vector in x.vectors]
    for rank, (vector, piece) in enumerate(zip(vectors, pieces, strict=True)):
        if piece is not None:
            split(vector, x.size)[rank][...] = piece
    return x.but(vectors)


def on_the_root(x: Example, vectors: Sequence[Any]) -> list[Any]:
    """The root's own vector for the root, None for the others."""
    return [vector if rank == x.root else None for rank, vector in enumerate(vectors)]
