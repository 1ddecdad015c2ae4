"""`zerosim lessons`: the lessons that come with the package, listed or copied."""

import argparse
from pathlib import Path

from zerosim.scenario.shipped import copy_out, lessons, material, title


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the argument of `zerosim lessons`."""
    parser.add_argument("folder", nargs="?", metavar="DIR", help="copy the lessons and their pictures into this folder")


def main(arguments: argparse.Namespace) -> int:
    """List the lessons, or copy them; 0."""
    if arguments.folder is None:
        for path in lessons():
            print(f"{title(path)}\n    {path}")
        print("\nzerosim lessons DIR copies the lessons and their pictures")
        return 0
    folder = Path(arguments.folder)
    copied = copy_out((source, folder / place) for source, place in material().items())
    print(f"{len(copied)} files in {folder}; begin with {folder / 'lessons' / lessons()[0].name}")
    return 0
