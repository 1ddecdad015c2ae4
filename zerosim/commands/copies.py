"""`zerosim lessons` and `zerosim exercises`: what comes with the package to read and to complete, listed or copied."""

import argparse
from pathlib import Path

from zerosim.scenario.shipped import copy_out, exercises, lessons, material, title


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the argument of both commands."""
    parser.add_argument("folder", nargs="?", metavar="DIR", help="copy the files into it; without it list them")


def main(arguments: argparse.Namespace) -> int:
    """List the files, or copy them and name the first; 0."""
    reading = arguments.command == "lessons"
    if arguments.folder is None:
        for path in lessons() if reading else exercises():
            print(f"{title(path)}\n    {path}" if reading else path)
        print(f"\nzerosim {arguments.command} DIR copies them")
        return 0
    folder = Path(arguments.folder)
    copied = copy_out((source, folder / place) for source, place in (material() if reading else exercises()).items())
    if reading:
        print(f"{len(copied)} files in {folder}; begin with {folder / 'lessons' / lessons()[0].name}")
    else:
        print(*copied, f"\nComplete a function in {copied[0]}, then run\n    zerosim check {copied[0]}", sep="\n")
    return 0
