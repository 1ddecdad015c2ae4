"""`zerosim show`: a collective, a step of stages or a pipeline, drawn from a recorded run; the table of algorithms."""

import argparse
from typing import Any

from rich.console import Console

from zerosim.collectives import ALGORITHMS
from zerosim.commands.arguments import add_collective, whole_number
from zerosim.commands.output import conclude, standard_output, write_json
from zerosim.core.errors import UsageError
from zerosim.show.grid import Column, show_grid, show_words
from zerosim.show.recorded import MOST_SHOWN_RANKS, shown


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the flags of `zerosim show`."""
    subject = parser.add_mutually_exclusive_group(required=True)
    subject.add_argument(
        "subject", nargs="?",
        help="an algorithm (--list names all), a stage such as zero3, several stages such as ddp,zero3, a pipeline's "
             "schedule such as 1f1b, or my_file.py:my_all_reduce")
    subject.add_argument(
        "--list", action="store_true", help="list all algorithms, with bytes and steps for --ranks (default 8)")
    parser.add_argument(
        "--ranks", type=whole_number(1, MOST_SHOWN_RANKS), metavar="N", help="number of ranks; default 4")
    parser.add_argument(
        "--root", type=int, metavar="R", help="the root rank of broadcast, reduce, scatter, gather; default 0")
    add_collective(parser)
    parser.add_argument(
        "--shard-ranks", type=whole_number(1, MOST_SHOWN_RANKS), metavar="G",
        help="for a stage: shard over groups of so many neighbouring ranks (HSDP)")
    parser.add_argument(
        "--secondary-ranks", type=whole_number(1, MOST_SHOWN_RANKS), metavar="G",
        help="for zero3: keep a second shard of the weights over so many neighbouring ranks, for backward")
    parser.add_argument(
        "--round", type=whole_number(0, 10**6), metavar="K",
        help="show only this round, 0 being the start; a page opens there")
    parser.add_argument("--html", metavar="FILE", help="write an HTML page to step through")
    parser.add_argument("--svg", metavar="FILE", help="write all steps as a picture, .svg or .png; it needs no browser")
    parser.add_argument("--json", metavar="FILE", help="write the schedule as JSON; - is standard output")


def main(arguments: argparse.Namespace) -> int:
    """Draw a collective, stages, pipelines or the table; 1 if what is drawn is wrong, else 0."""
    if arguments.list:
        others = ("root", "ranks_per_host", "shard_ranks", "secondary_ranks", "collective", "round", "html", "svg")
        if any(getattr(arguments, name) is not None for name in others):
            raise UsageError("the list of algorithms has --ranks and --json; remove all other flags")
        table = algorithms(arguments.ranks or 8)
        show_algorithms(standard_output(arguments), table)
        if arguments.json:
            write_json(arguments.json, table)
        return 0
    return conclude(arguments, shown(
        arguments.subject, arguments.ranks or 4, root=arguments.root, claims=arguments.collective,
        ranks_per_host=arguments.ranks_per_host, only=arguments.round, shard_ranks=arguments.shard_ranks,
        secondary_ranks=arguments.secondary_ranks))


def algorithms(size: int) -> dict[str, Any]:
    """The table as JSON; figures are for `size` ranks, null for an algorithm that does not support them.

    `sent_share` is the bytes that the rank which sends the most sends from root 0, over the bytes of the whole vector.

    >>> [row["sent_share"] for row in algorithms(8)["algorithms"] if row["name"] == "ring.all_reduce"]
    [1.75]
    """
    return {"schema": "zerosim.algorithms/1", "ranks": size, "algorithms": [{
        "name": name,
        "collective": row.collective,
        "title": row.title,
        "steps": row.steps(size) if row.serves(size) else None,
        "steps_formula": row.steps_formula,
        "sent_share": max(row.sent_bytes([1] * size, at) for at in range(size)) / size if row.serves(size) else None,
        "serves": row.limit,
        "order": row.order and row.order.__name__.replace("_", " "),
        "ordered": row.ordered,
        "source": row.source,
    } for name, row in ALGORITHMS.items()]}


def show_algorithms(console: Console, table: dict[str, Any]) -> None:
    """Print a line of figures and a title for each algorithm of the table."""
    rows, size = table["algorithms"], table["ranks"]
    names, sources = [row["name"] for row in rows], list(dict.fromkeys(row["source"] for row in rows))
    shares = {None: "–", 0: "0", 1: "n"}
    show_grid(console, names, [
        Column("steps", [row["steps_formula"] for row in rows], to_the_left=True),
        Column(f"N = {size}", [shares.get(row["sent_share"]) or f"{row['sent_share']:.4g} n" for row in rows]),
        Column("ranks", ["2, 4, 8, …" if row.needs_power_of_two else "2, 4, 6, …" if row.per_host else "any"
                         for row in ALGORITHMS.values()], to_the_left=True),
        Column("adds", [f"{row['order'] or '–'}{'*' * row['ordered']}" for row in rows], to_the_left=True),
        Column("from", [f"[{sources.index(row['source']) + 1}]" for row in rows], to_the_left=True)])
    console.print()
    for row in rows:
        show_words(console, row["title"], key=f"{row['name']:<{max(map(len, names))}}  ", style="dim")
    console.print()
    for note in [
        f"N = {size} ranks: bytes sent by the rank that sends the most; n: bytes of the whole vector",
        "fold: 2 where N is no power of two",
        "H: N/2, the number of hosts of two ranks; rest: 1 on one host, else 0",
        "*: adds in rank order, so the operation need not be commutative",
    ]:
        show_words(console, note, style="dim")
    for number, source in enumerate(sources, 1):
        show_words(console, source, key=f"[{number}] ", style="dim")
