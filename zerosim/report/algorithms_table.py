"""The table of algorithms in the terminal: what each costs, which ranks it serves, how it adds, where it is from.

    N    the number of ranks        n    the bytes of the whole vector
"""

from collections.abc import Callable
from fractions import Fraction
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.text import Text

from zerosim.collectives import ALGORITHMS, Algorithm

TRIED = range(2, 65)
"""Numbers of ranks at which a formula must give the table's steps."""


def folds(size: int) -> int:
    """2 where ranks fold and unfold, because there is no power of two of them."""
    return 2 * (size.bit_count() > 1)


FORMULAS: dict[str, Callable[[int], int]] = {
    "⌈log₂ N⌉": lambda size: (size - 1).bit_length(),
    "⌊log₂ N⌋ + fold": lambda size: size.bit_length() - 1 + folds(size),
    "2 ⌊log₂ N⌋ + fold": lambda size: 2 * (size.bit_length() - 1) + folds(size),
    "N − 1": lambda size: size - 1,
    "2N − 3": lambda size: 2 * size - 3,
    "2 (N − 1)": lambda size: 2 * (size - 1),
    "3N − 4": lambda size: 3 * size - 4,
}


def steps_formula(row: Algorithm) -> str:
    """The first formula that gives the steps of `row` wherever it serves.

    >>> steps_formula(ALGORITHMS["ring.all_reduce"]), steps_formula(ALGORITHMS["doubling.all_gather"])
    ('2 (N − 1)', '⌈log₂ N⌉')
    """
    served = [size for size in TRIED if row.serves(size)]
    return next(words for words, steps in FORMULAS.items() if all(steps(n) == row.steps(n) for n in served))


def most_sent(row: Algorithm, size: int) -> Fraction:
    """The bytes sent by the rank that sends the most, from root 0, as a share of n where chunks are equal.

    >>> most_sent(ALGORITHMS["ring.all_reduce"], 8)
    Fraction(7, 4)
    """
    return Fraction(max(row.sent_bytes([1] * size, rank) for rank in range(size)), size)


def order_name(row: Algorithm) -> str | None:
    return None if row.order is None else row.order.__name__.replace("_", " ")


def show_algorithms(console: Console, size: int) -> None:
    """Two lines an algorithm, a block a collective; what is sent is for `size` ranks."""
    sources = list(dict.fromkeys(row.source for row in ALGORITHMS.values()))
    console.print(columns("", "steps", f"at N = {size}", "ranks", "adds", "source"), style="bold", highlight=False)
    for _, family in groupby(ALGORITHMS.items(), lambda item: item[1].collective):
        for name, row in family:
            sent = share(most_sent(row, size)) if row.serves(size) else "–"
            ranks = "2, 4, 8, …" if row.needs_power_of_two else "any"
            added = f"{order_name(row) or '–'}{'*' * row.ordered}"
            line = columns(name, steps_formula(row), sent, ranks, added, f"[{sources.index(row.source) + 1}]")
            line.stylize("bold", 0, len(name))
            console.print(line, highlight=False)
            console.print(Text(f"  {row.title}", style="dim"), highlight=False)
        console.print()
    notes = [
        f"at N = {size}: bytes sent by the rank that sends the most, n being those of the whole vector",
        "fold: 2 where N is no power of two",
        "*: in rank order, so that the operation need not commute",
        *(f"[{number}] {source}" for number, source in enumerate(sources, 1)),
    ]
    for note in notes:
        console.print(note, style="dim", markup=False, highlight=False, soft_wrap=True)


def columns(name: str, steps: str, sent: str, ranks: str, added: str, source: str) -> Text:
    return Text(f"{name:<29}{steps:<19}{sent:>10}   {ranks:<13}{added:<15}{source}")


def share(of_n: Fraction) -> str:
    """
    >>> share(Fraction(7, 4)), share(Fraction(1)), share(Fraction(0))
    ('1.75 n', 'n', '0')
    """
    if of_n in (0, 1):
        return "n" if of_n else "0"
    return f"{float(of_n):.4g} n"


def document(size: int) -> dict[str, Any]:
    """The table as JSON; figures are for `size` ranks, null where an algorithm does not serve them."""
    return {
        "schema": "zerosim.algorithms/1",
        "ranks": size,
        "algorithms": [
            {
                "name": name,
                "collective": row.collective,
                "title": row.title,
                "steps": row.steps(size) if row.serves(size) else None,
                "steps_formula": steps_formula(row),
                "sent_share": float(most_sent(row, size)) if row.serves(size) else None,
                "serves": row.limit,
                "order": order_name(row),
                "ordered": row.ordered,
                "source": row.source,
            }
            for name, row in ALGORITHMS.items()
        ],
    }
