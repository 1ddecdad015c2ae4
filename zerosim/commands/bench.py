"""`zerosim bench`: figures of speed, as ratios within one run."""

import argparse
import os
import sys
from typing import Any

from zerosim.commands.arguments import whole_number
from zerosim.commands.benches import collectives, steps
from zerosim.commands.benches.samples import sample
from zerosim.commands.output import check_writable, standard_output, write_json
from zerosim.core.errors import UsageError
from zerosim.show.grid import show_words
from zerosim.worlds.launcher import launched
from zerosim.worlds.mpi import connect
from zerosim.worlds.mpi_start import zerosim_on
from zerosim.worlds.world import sharing


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
    parser.add_argument("--as", dest="collective", choices=collectives.COLLECTIVES,
                        help="the collective that FUNCTION implements")
    parser.add_argument(
        "--rounds", type=whole_number(1, 1000), default=15, metavar="N",
        help="measured rounds, after 2 rounds of warm-up; default 15")
    parser.add_argument("--model", choices=steps.WORKLOADS, default="mlp", help="the model; default mlp")
    parser.add_argument("--record", action="store_true", help="for check: steps of a run with --record instead")
    parser.add_argument("--json", metavar="FILE", help="write the figures as JSON; - is standard output")
    parser.add_argument(
        "--toml", metavar="FILE", help="for collectives: write this machine's links, for zerosim plan --cluster")


def main(arguments: argparse.Namespace) -> int:
    """Measure, on 2 ranks if there is no launcher; show and write the results of rank 0."""
    check_writable(arguments)
    if arguments.what != "collectives" and (arguments.function or arguments.collective or arguments.toml):
        raise UsageError(f"bench {arguments.what} takes neither FILE.py:FUNCTION nor --as nor --toml; they are for "
                         "bench collectives")
    if arguments.what == "check":
        from zerosim.torch.bench import seconds_of_steps  # noqa: PLC0415 - imports torch, if it is there
        what = "record" if arguments.record else "check"
        row = sample({"what": "a transformer of 3 million parameters"}, seconds_of_steps(arguments.rounds, what))
        ends = " … ".join(f"{end:.2f}" for end in row["ratio_range"])
        standard_output(arguments).print(
            f"{row['what']}: {1e3 * row['with_seconds']:.0f} ms per step with the {what}, "
            f"{1e3 * row['without_seconds']:.0f} ms without; ratio {row['ratio']:.2f} ({ends})")
        measured: dict[str, Any] | None = {what: row}
    elif launched() is None:
        command = zerosim_on(steps.RANKS, f"bench {arguments.what}")
        sys.stdout.flush()
        os.execv(command[0], [*command, *sys.argv[1:]])
    else:
        comm = connect()
        if comm.rank == 0 and (words := sharing(comm.size, comm.machine.shared_cores)):
            show_words(standard_output(arguments), words)
        measured = (collectives if arguments.what == "collectives" else steps).bench(arguments, comm)
    if measured is not None and arguments.json:
        write_json(arguments.json, {"schema": "zerosim.bench/1", **measured})
    return 0
