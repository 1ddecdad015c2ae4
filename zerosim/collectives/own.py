"""A user's collective: a function in place on chunks, like those here, and the order in which it adds.

The order is declared, and the reference replays the declaration; `zerosim check` proves it on symbols.
The messages of each rank are recorded from a run of the collective by itself.
"""

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

from zerosim.collectives.kinds import COLLECTIVE_KINDS
from zerosim.collectives.table import ALGORITHMS, Algorithm
from zerosim.core import orders
from zerosim.core.errors import UsageError
from zerosim.core.orders import AddingOrder
from zerosim.core.parts import Table

NAMED_ORDERS: dict[str, AddingOrder] = {
    "ring": orders.ring, "rank": orders.rank_order, "near_tree": orders.near_tree, "folded_tree": orders.folded_tree,
    "far_tree": orders.far_tree,
}
"""The orders that may be declared by name; any other is a function of contributions and a chunk's number."""

SERVING = {
    kind: Table({row.name: row for row in ALGORITHMS.values() if row.collective == kind and not row.per_host})
    for kind in ("reduce_scatter", "all_gather", "broadcast")
}
"""The algorithms that stages may use, by kind and name."""
SERVING["all_gather"]["auto"] = ALGORITHMS["bruck.all_gather"]     # serves all ranks; a config finds a better one


def collective(
    *, order: str | AddingOrder | None = None, powers_of_two: bool = False,
    chunks_sent: Callable[[int], float] | None = None, rounds: Callable[[int], int] | None = None,
) -> Callable[[Callable[..., None]], Algorithm]:
    """A decorator that makes a function an `Algorithm` with this order, for any number of ranks or for powers of two.

    `order` is ring, rank, near_tree, folded_tree or far_tree, or a function `order(contributions, chunk)` that adds the
    ranks' contributions to a chunk with `+`. `chunks_sent(ranks)`, if given, is the mean number of chunks that a rank
    sends, and `rounds(ranks)` the most rounds; a proof compares both with the messages.

    >>> @collective(order="rank")
    ... def my_reduce_scatter(comm, chunks): ...
    >>> my_reduce_scatter.order("abc", 0)
    'abc'
    """
    if isinstance(order, str) and order not in NAMED_ORDERS:
        raise UsageError(f"order {order!r} is unknown; use one of {', '.join(NAMED_ORDERS)}, or a function "
                         f"order(contributions, chunk)")
    adds = NAMED_ORDERS[order] if isinstance(order, str) else order
    return lambda function: declared(
        function.__name__, "", function, order=adds, needs_power_of_two=powers_of_two,
        chunks_sent=counted("chunks_sent", chunks_sent), rounds=counted("rounds", rounds))


def counted(name: str, formula: Callable[[int], float] | None) -> Callable[[int], float] | None:
    """A declared number, whose formula of the ranks ends with one line if it raises or gives no number."""
    if formula is None:
        return None

    def of(ranks: int) -> float:
        try:
            return 0 + formula(ranks)
        except Exception as error:
            raise UsageError(f"{name}({ranks}) gives no number: {type(error).__name__}: {error}; declare {name}=lambda "
                             "ranks: …") from None

    return of


def declared(name: str, kind: str, function: Callable[..., None], **declarations: Any) -> Algorithm:
    return Algorithm(
        name, kind, function, "yours", steps=unrecorded, steps_formula="as recorded", volume=unrecorded,
        source="yours", users=True, **declarations)


def unrecorded(*_: Any) -> NoReturn:
    """A placeholder for steps and volume until a user's collective is recorded."""
    raise AssertionError("what a user's collective sends is recorded first")


def as_collective(kind: str) -> Callable[[str, Any], Algorithm]:
    """A function that turns the object that a scenario names into an algorithm of this kind; it raises `UsageError`."""

    def algorithm_of(name: str, named: Any) -> Algorithm:
        if not isinstance(named, Algorithm) and not inspect.isfunction(named):
            raise UsageError(f"{name} is a {type(named).__name__}; give a function of a communicator and chunks")
        algorithm = named if isinstance(named, Algorithm) else declared(name, kind, named)
        promised, function = COLLECTIVE_KINDS[kind], algorithm.function
        expected = ["comm", *promised.parameters, *["root"] * promised.rooted]
        required = [given.name for given in inspect.signature(function).parameters.values() if given.default is
                    given.empty and given.kind in (given.POSITIONAL_ONLY, given.POSITIONAL_OR_KEYWORD)]
        if len(required) != len(expected):
            raise UsageError(f"{name} takes {', '.join(required)}; as {kind} it works in place; write def "
                             f"{function.__name__}({', '.join(expected)}), further parameters with defaults")
        if promised.reducing and algorithm.order is None:
            raise UsageError(f"{name} does not declare its order of addition; write @collective(order=\"ring\") above "
                             f"it (or {', '.join(list(NAMED_ORDERS)[1:])}, or a function order(contributions, chunk))")
        return replace(algorithm, name=name, collective=kind)

    return algorithm_of
