"""`zerosim lessons`: the lessons that come with the package, listed, copied, or opened as pages."""

import argparse
import webbrowser
from pathlib import Path
from tempfile import mkdtemp

from zerosim.proofs.pages import write_pages
from zerosim.scenario.shipped import copy_out, lessons, material, title


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the flags of `zerosim lessons`."""
    parser.add_argument("folder", nargs="?", metavar="DIR", help="copy the lessons and their pictures into this folder")
    parser.add_argument(
        "--html", action="store_true",
        help="write HTML pages that need no network, into DIR; without DIR, into a temporary folder, and open them")


def main(arguments: argparse.Namespace) -> int:
    """List the lessons, copy them, or write and open them as pages; 0."""
    if arguments.html:
        return show_pages(arguments.folder)
    if arguments.folder is None:
        for path in lessons():
            print(f"{title(path)}\n    {path}")
        print("\nzerosim lessons DIR copies the lessons and their pictures; zerosim lessons --html opens them")
        return 0
    folder = Path(arguments.folder)
    copied = copy_out((source, folder / place) for source, place in material().items())
    print(f"{len(copied)} files in {folder}; begin with {folder / 'lessons' / lessons()[0].name}")
    return 0


def show_pages(folder: str | None) -> int:
    """Write the pages, and open the first one if no folder was named; 0."""
    first = write_pages(Path(folder) if folder is not None else Path(mkdtemp(prefix="zerosim-lessons-")))
    print(first)
    if folder is None:
        webbrowser.open(first.as_uri())
    return 0
