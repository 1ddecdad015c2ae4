"""`zerosim show`: the schedule of a collective, drawn from a recorded run, or the table of algorithms.

The table has cost, supported numbers of ranks, order of addition, and source:

    N    the number of ranks        n    the bytes of the whole vector
"""

import argparse
from fractions import Fraction
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.text import Text

from zerosim.collectives import ALGORITHMS, Algorithm
from zerosim.collectives.kinds import COLLECTIVES
from zerosim.commands.arguments import add_hosts, whole_number
from zerosim.commands.output import check_writable, conclude, standard_output, write_json
from zerosim.core.errors import UsageError
from zerosim.core.parts import Loader
from zerosim.proofs.subject import asked_subject, files_of
from zerosim.show.drawing import shown_schedule
from zerosim.show.grid import show_words
from zerosim.show.recorded import MOST_RANKS, is_stage, schedule_of, stage_step
from zerosim.show.shown import Shown
from zerosim.show.step import shown_step
from zerosim.show.transposes import on_tape, shown_transpose
from zerosim.stages import STAGES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the flags of `zerosim show`."""
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument(
        "subject", nargs="?",
        help="an algorithm (--list names all), a collective on the tape such as all_to_all, a stage such as zero3, or "
             "my_file.py:my_all_reduce")
    asked.add_argument("--list", action="store_true", help="list all algorithms, with bytes and steps for --ranks "
                                                           "(default 8)")
    parser.add_argument(
        "--ranks", type=whole_number(1, MOST_RANKS), metavar="N", help="number of ranks; default 4")
    parser.add_argument(
        "--root", type=int, metavar="R", help="the root rank of broadcast, reduce, scatter, gather; default 0")
    add_hosts(parser)
    parser.add_argument(
        "--shard-ranks", type=whole_number(1, MOST_RANKS), metavar="G",
        help="for a stage: shard over groups of so many neighbouring ranks (HSDP)")
    parser.add_argument(
        "--secondary-ranks", type=whole_number(1, MOST_RANKS), metavar="G",
        help="for zero3: keep a second shard of the weights over so many neighbouring ranks, for backward")
    parser.add_argument(
        "--as", choices=COLLECTIVES, dest="collective", help="the collective that the function implements, if its "
                                                             "name does not say")
    parser.add_argument(
        "--round", type=whole_number(0, 10**6), metavar="K", help="show only this round, 0 being the start; a page "
                                                                  "opens there")
    parser.add_argument("--html", metavar="FILE", help="write an HTML page to step through")
    parser.add_argument("--svg", metavar="FILE", help="write the schedule of a collective as a picture")
    parser.add_argument("--json", metavar="FILE", help="write the schedule as JSON; - is standard output")


def main(arguments: argparse.Namespace) -> int:
    """Draw a collective, a stage or the table; 1 if the collective's result is wrong, else 0."""
    check_writable(arguments, files_of(arguments.subject))
    if (arguments.svg or "").endswith((".png", ".jpg", ".jpeg", ".pdf")):
        raise UsageError(f"--svg: found {arguments.svg!r}; give a name that ends in .svg")
    if arguments.list:
        return show_table(arguments)
    of_stage = is_stage(arguments.subject)
    if groups(arguments) and not of_stage:
        raise UsageError("remove --shard-ranks and --secondary-ranks: they are for a stage, not for a collective")
    return conclude(arguments, shown_stage(arguments) if of_stage else shown_collective(arguments))


def groups(arguments: argparse.Namespace) -> dict[str, int]:
    """The given keys of [parallel] that set groups of ranks."""
    given = {key: getattr(arguments, key) for key in ("shard_ranks", "secondary_ranks")}
    return {key: value for key, value in given.items() if value is not None}


def show_table(arguments: argparse.Namespace) -> int:
    for flag in ("root", "collective", "ranks_per_host", "shard_ranks", "secondary_ranks", "round", "html", "svg"):
        if getattr(arguments, flag) is not None:
            name = flag.replace("collective", "as").replace("_", "-")
            raise UsageError(f"remove --{name}: it is for a drawing, not for --list")
    size = arguments.ranks or 8
    show_algorithms(standard_output(arguments), size)
    if arguments.json:
        write_json(arguments.json, algorithms_document(size))
    return 0


def shown_collective(arguments: argparse.Namespace) -> Shown:
    size, loader = arguments.ranks or 4, Loader()
    operation = on_tape(arguments.subject, loader)
    if operation is not None:
        if any(each is not None for each in (
                arguments.root, arguments.collective, arguments.ranks_per_host, arguments.round)):
            raise UsageError("remove --root, --as, --ranks-per-host and --round: the tape's collectives have none")
        return shown_transpose(operation, size)
    schedule = schedule_of(asked_subject(
        arguments.subject, arguments.collective, arguments.ranks_per_host, loader, list(STAGES)), size, arguments.root)
    last = len(schedule.states) - 1
    check_round(arguments, 0, last, f"{schedule.title} has rounds 1 to {last}; 0 is the start")
    return shown_schedule(schedule, arguments.round)


def shown_stage(arguments: argparse.Namespace) -> Shown:
    for flag, given in (
            ("root", arguments.root), ("as", arguments.collective), ("ranks-per-host", arguments.ranks_per_host),
            ("svg", arguments.svg)):
        if given is not None:
            raise UsageError(f"remove --{flag}: it is for a collective, not for a stage")
    found = stage_step(arguments.subject, arguments.ranks or 4, **groups(arguments))
    check_round(arguments, 1, len(found.events), f"{found.title} has events 1 to {len(found.events)}")
    return shown_step(found, arguments.round)


def check_round(arguments: argparse.Namespace, first: int, last: int, found: str) -> None:
    if arguments.round is not None and not first <= arguments.round <= last:
        raise UsageError(f"--round {arguments.round}: {found}")


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
