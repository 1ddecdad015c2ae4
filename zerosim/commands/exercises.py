"""`zerosim exercises`: copies skeletons to complete and small scenarios from the package into a folder."""

import argparse
from pathlib import Path

from zerosim.scenario.shipped import copy_out, exercises


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the flags of `zerosim exercises`."""
    parser.add_argument("folder", metavar="DIR", help="the folder to write to; it is created if missing")


def main(arguments: argparse.Namespace) -> int:
    """Copy the files, list them with the next command; 0."""
    folder = Path(arguments.folder)
    for path in copy_out((source, folder / place) for source, place in exercises().items()):
        print(path)
    first = folder / next(iter(exercises().values()))
    print(f"\nComplete a function in {first}, then run\n    zerosim check {first}")
    return 0
