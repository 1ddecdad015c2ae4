"""Bars of characters: the kinds of a rank's model states end to end, told apart by shades where there is no colour."""

from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import NamedTuple

from rich.text import Text


class Kind(NamedTuple):
    """How one kind of model state is drawn: without colour its shade tells it apart."""

    name: str
    shade: str
    colour: str


KINDS = (
    Kind("parameters", "█", "blue"),
    Kind("gradients", "▓", "yellow"),
    Kind("optimizer", "░", "green"),
)


def stacked(counts: Sequence[int | Fraction], whole: int | Fraction, room: int) -> Text:
    """One bar of what there is of each of `KINDS`; `whole` fills all of the room. What is there has at least a column.

    Ends are rounded, not lengths: rounding does not add up.

    >>> stacked([1, 1, 2], whole=56, room=56).plain, stacked([70, 1, 1], whole=72, room=8).plain
    ('█▓░░', '██████▓░')
    """
    ends = [0]
    for count, end in zip(counts, accumulate(map(Fraction, counts)), strict=True):
        ends.append(max(round(end * room / whole), ends[-1] + (count > 0)))
    for number in reversed(range(1, len(ends))):
        later = sum(count > 0 for count in counts[number:])
        ends[number] = min(ends[number], max(room - later, 0))
    return Text.assemble(*(
        (kind.shade * (stop - start), kind.colour) for kind, (start, stop) in zip(KINDS, pairwise(ends), strict=True)
    ))


def bar(count: float, whole: float, room: int) -> Text:
    """Of `whole`, which fills all of the room; what is there has at least a column.

    >>> bar(2, 3, 6).plain, bar(0, 3, 6).plain
    ('━━━━', '')
    """
    return Text("━" * max(round(count * room / whole), 1) if count else "", style="cyan")
