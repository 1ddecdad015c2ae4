"""`zerosim show`: the schedule of a collective, drawn from a recorded run, or the table of algorithms."""

import argparse

from zerosim.collectives.kinds import COLLECTIVES
from zerosim.commands.arguments import add_hosts, whole_number
from zerosim.commands.output import check_writable, conclude, standard_output, write_json
from zerosim.errors import UsageError
from zerosim.jobs.proofs import asked_subject, on_tape
from zerosim.jobs.schedules import MOST_RANKS, is_stage, schedule_of, stage_step
from zerosim.parts import Loader
from zerosim.show import algorithms_table
from zerosim.show.film import shown_schedule, shown_step
from zerosim.show.shown import Shown
from zerosim.show.transposes import shown_transpose
from zerosim.stages import STAGES
from zerosim.teach.proofs.subject import files_of


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
    algorithms_table.show_algorithms(standard_output(arguments), size)
    if arguments.json:
        write_json(arguments.json, algorithms_table.algorithms_document(size))
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
