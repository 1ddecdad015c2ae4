"""The table of algorithms in the terminal: cost, supported numbers of ranks, order of addition, and source.

    N    the number of ranks        n    the bytes of the whole vector
"""

from fractions import Fraction
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.text import Text

from zerosim.collectives import ALGORITHMS, Algorithm
from zerosim.show.grid import show_words


def most_sent(row: Algorithm, size: int) -> Fraction:
    """The bytes sent by the rank that sends the most, from root 0, as a share of n where chunks are equal.

    >>> most_sent(ALGORITHMS["ring.all_reduce"], 8)
    Fraction(7, 4)
    """
    return Fraction(max(row.sent_bytes([1] * size, rank) for rank in range(size)), size)


def order_name(row: Algorithm) -> str | None:
    return None if row.order is None else row.order.__name__.replace("_", " ")


def show_algorithms(console: Console, size: int) -> None:
    """Print two lines for each algorithm, a block for each collective; bytes sent are for `size` ranks."""
    sources = list(dict.fromkeys(row.source for row in ALGORITHMS.values()))
    cells = [
        ("steps", f"N = {size}", "ranks", "adds", ""),
        *(figures(row, size, sources.index(row.source) + 1) for row in ALGORITHMS.values()),
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    heading, *lines = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in cells]
    first = max(map(len, ALGORITHMS))
    beside = first + 2 + max(map(len, lines)) <= console.width
    console.print(f"{'':<{first}}  {heading}" if beside else f"  {heading}", style="bold", soft_wrap=True)
    figures_of = dict(zip(ALGORITHMS, lines, strict=True))
    for _, family in groupby(ALGORITHMS.items(), lambda item: item[1].collective):
        for name, row in family:
            below = f"  {figures_of[name]}"
            figures_beside = f"{'':<{first - len(name)}}{below}" if beside else ""
            console.print(Text.assemble((name, "bold"), figures_beside), soft_wrap=True)
            show_words(console, row.title, key="  ", style="dim")
            if not beside:
                console.print(Text(below), soft_wrap=True)
        console.print()
    for note in [
        f"N = {size} ranks: bytes sent by the rank that sends the most; n: bytes of the whole vector",
        "fold: 2 where N is no power of two",
        "H: ⌈N/2⌉, the number of hosts of two ranks; short: H where N is odd and the last host has one rank",
        "rest: H − 1 where N is odd, 1 on one host of two ranks, else 0",
        "*: adds in rank order, so the operation need not be commutative",
    ]:
        show_words(console, note, style="dim")
    for number, source in enumerate(sources, 1):
        show_words(console, source, key=f"[{number}] ", style="dim")


def figures(row: Algorithm, size: int, source: int) -> tuple[str, ...]:
    sent = share(most_sent(row, size)) if row.serves(size) else "–"
    ranks = "2, 4, 8, …" if row.needs_power_of_two else "any"
    return row.steps_formula, sent, ranks, f"{order_name(row) or '–'}{'*' * row.ordered}", f"[{source}]"


def share(of_n: Fraction) -> str:
    """
    >>> share(Fraction(7, 4)), share(Fraction(1)), share(Fraction(0))
    ('1.75 n', 'n', '0')
    """
    if of_n in (0, 1):
        return "n" if of_n else "0"
    return f"{float(of_n):.4g} n"


def algorithms_document(size: int) -> dict[str, Any]:
    """The table as JSON; figures are for `size` ranks, null for an algorithm that does not support them."""
    return {
        "schema": "zerosim.algorithms/1",
        "ranks": size,
        "algorithms": [
            {
                "name": name,
                "collective": row.collective,
                "title": row.title,
                "steps": row.steps(size) if row.serves(size) else None,
                "steps_formula": row.steps_formula,
                "sent_share": float(most_sent(row, size)) if row.serves(size) else None,
                "serves": row.limit,
                "order": order_name(row),
                "ordered": row.ordered,
                "source": row.source,
            }
            for name, row in ALGORITHMS.items()
        ],
    }
