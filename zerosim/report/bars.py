"""Bars of characters: a rank's model states side by side, distinguished by shades where there is no colour.

Bars come in few widths (32, 16 or 8 columns for kept bytes; 18, 12 or 6 for sent bytes), so that halves, quarters
and thirds are whole columns. A positive count has at least one column, and equal counts are equally long, even if the
sum is then a column too long.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from rich.text import Text


class BarKind(NamedTuple):
    """The style of one kind of model state; without colour its shade identifies it."""

    name: str
    shade: str
    colour: str


KINDS = (
    BarKind("parameters", "█", "blue"),
    BarKind("gradients", "▓", "yellow"),
    BarKind("optimizer", "░", "green"),
)


def stacked(counts: Sequence[int | Fraction], whole: int | Fraction, room: int) -> Text:
    """One bar with the count of each of `KINDS`; `whole` fills all of the room, equal counts are equally long.

    A positive count has at least a column; the longest is shortened if the sum would be longer than the room.

    >>> stacked([1, 1, 2], whole=56, room=56).plain, stacked([70, 1, 1], whole=72, room=8).plain
    ('█▓░░', '██████▓░')
    """
    lengths = [max(round(count * room / max(whole, 1)), int(count > 0)) for count in counts]
    longest = lengths.index(max(lengths))
    lengths[longest] -= max(sum(lengths) - room, 0)
    return Text.assemble(*(
        (kind.shade * length, kind.colour) for kind, length in zip(KINDS, lengths, strict=True)))


def bar(count: float, whole: float, room: int) -> Text:
    """The bar of a count; `whole` fills all of the room, and a positive count has at least a column.

    >>> bar(2, 3, 6).plain, bar(0, 3, 6).plain
    ('━━━━', '')
    """
    return Text("━" * max(round(count * room / whole), 1) if count else "", style="cyan")
