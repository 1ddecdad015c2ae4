"""Symbols instead of numbers: adding them builds a tree, so that a sum records how it was made.

    Term     the contribution of one rank to one element
    Blank    a place that was never filled
    Sum      left + right, in this order

An object array of symbols can be sent by any collective in the local world. Afterwards each element shows which
contributions it contains, how often, and in which order they were added, for all values that the numbers could have
had.

Rules and trade-offs:

- A term knows its element, although it prints as `g1`. Otherwise a proof could not distinguish a misplaced chunk from a
  right one.
- Unfilled places hold blanks, so that a lost chunk shows even where its values would happen to be right.
- Only `+` is defined. Every other operator raises an error with the reason: symbols cannot prove anything about max or
  about an average. Laws on numbers test `np.maximum` and other reductions instead.
- `a + b` and `b + a` are different trees, although IEEE addition commutes. Our own algorithms are compared with the
  declared tree including its operands, because of NaN payloads; functions of users are compared after `commuted`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NoReturn, cast

import numpy as np
import numpy.typing as npt

from zerosim.core.errors import CollectiveError, Runaway

MOST_CONTRIBUTIONS = 1 << 14
"""The most contributions of a sum: more than the ranks of any proof."""

LIKE = "make buffers with np.empty_like(chunks[c]), since np.empty and np.zeros are float64 by default"
"""The advice for a buffer of the right dtype."""


def refused(why: str) -> Callable[..., NoReturn]:
    """An operator that symbols do not have: it raises the error, which names the symbol and the other operand."""
    def operator(symbol: Any, other: Any = None) -> NoReturn:
        raise CollectiveError(why.format(symbol, other))

    return operator


class Addable:
    """The base of symbols: they can be added; every other operation raises an error that explains why."""

    __slots__ = ()

    def __add__(self, other: Any) -> "Sum":
        if isinstance(other, Term | Blank | Sum):
            return together(cast("Symbol", self), other)
        raise CollectiveError(not_added(self, other))

    def __radd__(self, other: Any) -> "Sum":
        raise CollectiveError(not_added(self, other))

    __truediv__ = __floordiv__ = __mod__ = refused(
        "{} was divided by {}: symbols can only be added, and a sum is not an average; remove the division")
    __mul__ = __rmul__ = refused(
        "{} was multiplied by {}: symbols can only be added, and a sum is not an average; send and add contributions "
        "unchanged")
    __sub__ = refused("{1} was subtracted from {0}: symbols can only be added")
    __lt__ = __gt__ = __le__ = __ge__ = refused(
        "{} was compared with {}: symbols can only be added; call `reduce`, which adds here, not max or np.maximum")
    __float__ = __int__ = __complex__ = __index__ = refused(
        f"{{}} was converted to a float: keep the dtype of the input; {LIKE}")


def not_added(symbol: Any, other: Any) -> str:
    """The reason why `other` cannot be added to `symbol`."""
    if other is None:
        return f"{symbol} was added to an uninitialized buffer, such as np.empty or np.empty_like returns"
    return (f"{symbol} was added to {other!r}, which no rank contributed: begin with a copy of one contribution, not "
            "with zeros (0 + -0.0 is 0.0, which has different bits)")


@dataclass(frozen=True, slots=True)
class Term(Addable):
    """The contribution of rank `rank` to element `element` of its vector; terms that are added give a `Sum`.

    >>> (Term(1) + Term(2)) + Term(0)
    ((g1 + g2) + g0)
    """

    rank: int
    element: int = 0

    def __repr__(self) -> str:
        return f"g{self.rank}"


@dataclass(frozen=True, slots=True)
class Blank(Addable):
    """The content of a place that was never filled: reading it is an error, which a proof will show."""

    rank: int
    element: int = 0

    def __repr__(self) -> str:
        return "·"


@dataclass(frozen=True, slots=True)
class Sum(Addable):
    """`left + right`, in this order; `count` contributions in all, 0 if they were not counted."""

    left: "Symbol"
    right: "Symbol"
    count: int = field(default=0, compare=False)

    def __repr__(self) -> str:
        return f"({self.left} + {self.right})"


Symbol = Term | Blank | Sum


def together(left: Symbol, right: Symbol) -> Sum:
    """The sum of two symbols. Raises `Runaway` when it has more contributions than ranks could have made."""
    count = (left.count if isinstance(left, Sum) else 1) + (right.count if isinstance(right, Sum) else 1)
    if count > MOST_CONTRIBUTIONS:
        raise Runaway(f"a sum has reached {count:,} contributions, the same ones again and again")
    return Sum(left, right, count)


def leaves(symbol: Symbol) -> Iterable[Term | Blank]:
    """The single contributions in `symbol`, left to right.

    >>> list(leaves(Term(1) + Term(0)))
    [g1, g0]
    """
    pending = [symbol]
    while pending:
        match pending.pop():
            case Sum(left, right):
                pending += [right, left]
            case leaf:
                yield leaf


def commuted(symbol: Symbol) -> Symbol:
    """A sum with the smaller side first in every `a + b`: IEEE addition commutes, so this changes no bit.

    >>> commuted(Term(2) + (Term(1) + Term(0)))
    ((g0 + g1) + g2)
    """
    return _commuted(symbol)[1]


def _commuted(symbol: Symbol) -> tuple[tuple[int, int], Symbol]:
    if not isinstance(symbol, Sum):
        return (symbol.rank, symbol.element), symbol
    (first, left), (second, right) = _commuted(symbol.left), _commuted(symbol.right)
    return (first, Sum(left, right)) if first <= second else (second, Sum(right, left))


def symbols(rank: int, count: int, of: Callable[[int, int], Term | Blank] = Term) -> npt.NDArray[Any]:
    """An object array of `count` elements, each the contribution of `rank` to that element, or unfilled.

    >>> symbols(1, 2) + symbols(2, 2)
    array([(g1 + g2), (g1 + g2)], dtype=object)
    """
    return np.fromiter(_shared(of, rank, count), object)


@lru_cache(maxsize=128)
def _shared(of: Callable[[int, int], Term | Blank], rank: int, count: int) -> tuple[Term | Blank, ...]:
    """The symbols of one kind and rank for `count` elements; runs of one proof share them."""
    return tuple(of(rank, element) for element in range(count))
