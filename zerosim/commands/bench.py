"""`zerosim bench`: figures of speed, as ratios within one run."""

import argparse
import os
import sys
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
from zerosim.commands.benches.samples import Sample, on_rank_0
from zerosim.commands.benches.tables import show_check, show_collectives, show_steps
from zerosim.commands.benches.timings import RANKS, WORKLOADS, time_steps
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the flags of `zerosim bench`."""
    parser.add_argument(
        "what", choices=("step", "collectives", "check"),
        help="step: a step of each stage on 2 MPI ranks against one process; collectives: every algorithm of four "
             "collectives, 1 KiB to 64 MiB, and MPI's own, on any number of ranks; check: steps of PyTorch's DDP on 2 "
             "ranks with zerosim torch --check beside steps without it")
    parser.add_argument(
        "function", nargs="?", metavar="FILE.py:FUNCTION",
        help="for collectives: time this function too, beside the shipped algorithms of its collective")
    parser.add_argument("--as", dest="collective", choices=COLLECTIVES, help="the collective that FUNCTION implements")
    parser.add_argument(
        "--rounds", type=whole_number(1, 1000), default=15, metavar="N",
        help="measured rounds, after 2 rounds of warm-up; default 15")
    parser.add_argument("--model", choices=WORKLOADS, default="mlp", help="the model; default mlp")
    parser.add_argument("--json", metavar="FILE", help="write the figures as JSON; - is standard output")
    parser.add_argument(
        "--toml", metavar="FILE",
        help="for collectives: write this machine's links and the switch of all-gathers, for zerosim plan --cluster")


def main(arguments: argparse.Namespace) -> int:
    """Measure on 2 ranks, which are started if there is no launcher; show and write the results of rank 0."""
    check_writable(arguments)
    if arguments.what != "collectives" and (arguments.function or arguments.toml):
        raise UsageError(f"bench {arguments.what} takes neither FILE.py:FUNCTION nor --toml; they are for bench "
                         "collectives")
    if arguments.what == "check":
        from zerosim.torch.check.bench import seconds_of_steps  # noqa: PLC0415 - imports torch, if it is there

        row = Sample({"what": "a transformer of 3 million parameters"}, seconds_of_steps(arguments.rounds)).document()
        show_check(standard_output(arguments), row)
        write_document(arguments, check=row)
        return 0
    if launched() is None:
        start_ranks(arguments.what)
    if arguments.what == "collectives":
        return report_collectives(arguments)
    if launched() != RANKS:
        raise UsageError(f"bench {arguments.what} measures {RANKS} ranks and the launcher started {launched()}: "
                         f"run it with mpirun -n {RANKS}, or without")
    workload = WORKLOADS[arguments.model]
    (measured,) = MpiWorld(connect()).run(
        lambda comm: on_rank_0(comm, time_steps, arguments.rounds, workload))
    if measured is not None:
        warn_of_sharing(arguments)
        rows = [each.document() for each in measured]
        show_steps(standard_output(arguments), rows, workload)
        write_document(arguments, stages=rows)
    return 0


def start_ranks(what: str) -> NoReturn:
    """Run this command again on `RANKS` ranks: the launcher replaces this process."""
    command = zerosim_on(RANKS, f"bench {what}")
    sys.stdout.flush()
    os.execv(command[0], [*command, *sys.argv[1:]])


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
