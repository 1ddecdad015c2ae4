"""`zerosim bench`: figures of speed, as ratios within one run."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from zerosim.commands.arguments import whole_number
from zerosim.commands.benches.collectives import (
    COLLECTIVES,
    SIZES,
    fit,
    measured_switches,
    measured_toml,
    time_collectives,
)
from zerosim.commands.benches.plans import time_plans
from zerosim.commands.benches.published import compare
from zerosim.commands.benches.run_lines import MPT, OUTSIDE, PARALLEL, lines_of
from zerosim.commands.benches.samples import Sample, on_rank_0
from zerosim.commands.benches.tables import SUBJECTS, show_collectives, show_published, show_samples
from zerosim.commands.benches.timings import RANKS, WORKLOADS, Workload
from zerosim.commands.output import check_writable, standard_output, write_json
from zerosim.core.errors import UsageError
from zerosim.core.files import write_text
from zerosim.proofs.proof import prove
from zerosim.proofs.subject import Subject, named_subject
from zerosim.show.document import sharing
from zerosim.show.grid import show_words
from zerosim.worlds.launcher import launched
from zerosim.worlds.mpi import MpiWorld, connect
from zerosim.worlds.mpi_start import zerosim_on

PUBLISHED = {"runs": MPT, "elsewhere": OUTSIDE, "parallel": PARALLEL}
"""The tables of published runs, by their key in JSON."""
ONLY_FOR = {
    "toml": (("collectives",), "measures no links; remove --toml, or use bench collectives"),
    "function": (("collectives",), "times no function; FILE.py:FUNCTION is for bench collectives"),
    "runs": (("published",), "compares no runs; --runs is for bench published"),
}
"""The subjects of a flag, and what is wrong with all others."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the flags of `zerosim bench`."""
    parser.add_argument(
        "what", choices=SUBJECTS, help="; ".join(f"{name}: {each.words}" for name, each in SUBJECTS.items()))
    parser.add_argument(
        "function", nargs="?", metavar="FILE.py:FUNCTION",
        help="for collectives: time this function too, beside the shipped algorithms of its collective")
    parser.add_argument("--as", dest="collective", choices=COLLECTIVES, help="the collective that FUNCTION implements")
    parser.add_argument(
        "--rounds", type=whole_number(1, 1000), default=15, metavar="N",
        help="measured rounds, after 2 rounds of warm-up; default 15")
    parser.add_argument("--model", choices=WORKLOADS, default="mlp", help="the model; default mlp")
    parser.add_argument(
        "--runs", metavar="FILE.csv", type=Path,
        help="for published: read the runs from this CSV file, with the columns of a shipped table, e.g. parallel.csv")
    parser.add_argument("--json", metavar="FILE", help="write the figures as JSON; - is standard output")
    parser.add_argument(
        "--toml", metavar="FILE",
        help="for collectives: write this machine's links and the switch of all-gathers, for zerosim plan --cluster")


def main(arguments: argparse.Namespace) -> int:
    """Measure on 2 ranks, which are started if there is no launcher; plans need none."""
    check_writable(arguments)
    subject, workload = SUBJECTS[arguments.what], WORKLOADS[arguments.model]
    for flag, (subjects, wrong) in ONLY_FOR.items():
        if getattr(arguments, flag) and arguments.what not in subjects:
            raise UsageError(f"bench {arguments.what} {wrong}")
    if arguments.what == "plans":
        return report(arguments, time_plans(arguments.rounds))
    if subject.measure is None:
        return report_published(arguments)
    if launched() is None:
        start_ranks(arguments.what)
    if arguments.what == "collectives":
        return report_collectives(arguments)
    if launched() != RANKS:
        raise UsageError(f"bench {arguments.what} measures {RANKS} ranks and the launcher started {launched()}: "
                         f"run it with mpirun -n {RANKS}, or without")
    measured = on_this_rank(subject.measure, arguments.rounds, workload)
    return report(arguments, measured, workload)


def on_this_rank(measure: Callable[..., Any], *more: Any) -> Any:
    """The result of a measurement on the launched ranks, on rank 0; None on the others."""
    (found,) = MpiWorld(connect()).run(lambda comm: on_rank_0(comm, measure, *more))
    return found


def start_ranks(what: str) -> NoReturn:
    """Run this command again on `RANKS` ranks: the launcher replaces this process."""
    command = zerosim_on(RANKS, f"bench {what}")
    sys.stdout.flush()
    os.execv(command[0], [*command, *sys.argv[1:]])


def report(
    arguments: argparse.Namespace, measured: Sequence[Sample] | None, workload: Workload | None = None, **more: Any
) -> int:
    """Show and write the samples of rank 0; `more` is written beside them."""
    if measured is not None:
        warn_of_sharing(arguments)
        rows = [each.document() for each in measured]
        show_samples(standard_output(arguments), arguments.what, rows, workload)
        write_document(arguments, **more, **{SUBJECTS[arguments.what].key: rows})
    return 0


def write_document(arguments: argparse.Namespace, **found: Any) -> None:
    if arguments.json:
        write_json(arguments.json, {"schema": "zerosim.bench/1", **found})


def warn_of_sharing(arguments: argparse.Namespace) -> None:
    """Print a warning if there are more ranks than cores; a process without a launcher is alone."""
    if launched() is None:
        return
    comm = connect()
    if words := sharing(comm.size, comm.machine.shared_cores):
        show_words(standard_output(arguments), words)


def report_collectives(arguments: argparse.Namespace) -> int:
    """Measure collectives; show and write the results of rank 0."""
    comm = connect()
    users = users_collective(arguments, comm.size)
    found = on_rank_0(comm, time_collectives, comm.own_collectives(), arguments.rounds, SIZES, users)
    if found is not None:
        warn_of_sharing(arguments)
        rows = [each.document() for each in found]
        switches, line = ({}, None) if users else (measured_switches(rows), fit(rows))
        show_collectives(standard_output(arguments), rows, comm.library, switches, line)
        write_document(arguments, library=comm.library, switches=switches, fit=line, collectives=rows)
        if arguments.toml and line is not None:
            write_text(arguments.toml, measured_toml(line, switches))
    return 0


def users_collective(arguments: argparse.Namespace, ranks: int) -> Subject | None:
    """The user's function, proved on these ranks; raises `UsageError` if it is not right or its kind is not timed."""
    if arguments.function is None:
        return None
    if arguments.toml:
        raise UsageError("--toml needs the times of all collectives; remove FILE.py:FUNCTION")
    found = named_subject(arguments.function, arguments.collective)
    if found.collective not in COLLECTIVES:
        raise UsageError(f"{found.name} is an {found.collective}; times are taken of {', '.join(COLLECTIVES)}")
    if not found.serves(ranks):
        raise UsageError(f"{found.name} serves a power of two of ranks, not {ranks}; start as many")
    if not (proof := prove(found, ranks)).holds:
        raise UsageError(f"{found.name} is not proved on {ranks} ranks: {proof.faults[0].what}; zerosim prove says why")
    return found


def report_published(arguments: argparse.Namespace) -> int:
    """Plan published runs; show and write the errors of the plans."""
    document: dict[str, Any] = {}
    for key in ("runs", "elsewhere") if arguments.runs is None else [key_of(arguments.runs)]:
        table = PUBLISHED[key]
        ships = arguments.runs is not None and not arguments.runs.exists() and arguments.runs.name == table.file
        compared = compare(table.fit(table.read(None if ships else arguments.runs)))
        show_published(standard_output(arguments), compared, table.near)
        document[key] = [each.document() for each in compared]
    write_document(arguments, **document)
    return 0


def key_of(path: Path) -> str:
    """The table with this file, or with its columns: of these, only figures of other trainers say what was measured."""
    for key, table in PUBLISHED.items():
        if table.file == path.name and not path.exists():
            return key
    columns = {column for line in lines_of(path) for column in line}
    return "parallel" if "tensor" in columns else "elsewhere" if "measured_kind" in columns else "runs"
