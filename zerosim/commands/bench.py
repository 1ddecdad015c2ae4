"""`zerosim bench`: figures of speed, as ratios within one run."""

import argparse
import subprocess
import sys

from zerosim.bench import RANKS, time_steps
from zerosim.commands.output import standard_output, write_json
from zerosim.report.bench_table import show_timings
from zerosim.worlds.mpi import connect, launched, own_launcher


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the flags of `zerosim bench`."""
    parser.add_argument(
        "what", choices=("step",), help="step: a step of each stage on 2 MPI ranks against one process")
    parser.add_argument("--rounds", type=int, default=15, help="measured rounds, after 2 to warm up; default 15")
    parser.add_argument("--json", metavar="FILE", help="write the figures; - is standard output")


def main(arguments: argparse.Namespace) -> int:
    """Measure as one of 2 ranks or, without a launcher, start those 2."""
    if launched() is None:
        command = [own_launcher(), "-n", str(RANKS), sys.executable, "-m", "zerosim"]
        return subprocess.run([*command, *sys.argv[1:]], check=False).returncode
    timings = time_steps(connect(), arguments.rounds)
    if timings is not None:
        show_timings(standard_output(arguments), timings)
        if arguments.json:
            stages = [timing.document() for timing in timings]
            write_json(arguments.json, {"schema": "zerosim.bench/1", "stages": stages})
    return 0
