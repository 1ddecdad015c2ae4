"""`zerosim report`: the tables, the page or the pictures of a run from the output of `zerosim run --json`."""

import argparse
import os
from collections.abc import Sequence

from zerosim.commands.output import RUN_WIDTH, console
from zerosim.core.errors import UsageError
from zerosim.core.files import content, reason, write_text
from zerosim.show.document import RunDocument, read
from zerosim.show.page import page
from zerosim.show.pictures import Spec, files, svg
from zerosim.show.shown import Picture
from zerosim.show.table import show_heading, show_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the flags of `zerosim report`."""
    parser.add_argument("outcome", help="an outcome written by zerosim run --json")
    parser.add_argument("-v", "--verbose", action="store_true", help="print more, as zerosim run -v does")
    parser.add_argument("--html", metavar="FILE", help="write the page")
    parser.add_argument("--pictures", metavar="FOLDER", help="write every picture as SVG and PNG, for slides")
    parser.add_argument(
        "--picture", metavar="NAME=FILE", action="append", default=[], type=name_and_file,
        help="write one picture to an .svg or .png file: kept, sent, losses, or of the third row step-3, memory-3, "
             "partners-3; may be given several times")


def main(arguments: argparse.Namespace) -> int:
    """Write the page, the pictures, or both, or else print the tables; 0 for any result of the run.

    An outcome may be of another version, or edited: what the views do not find in it is its fault.
    """
    name = arguments.outcome
    try:
        show(arguments, run_in(name))
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise UsageError(f"{name} is not an outcome of this version's zerosim run: {type(error).__name__}: "
                         f"{' '.join(str(error).split())[:200]}; write one with --json FILE") from error
    return 0


def show(arguments: argparse.Namespace, run: RunDocument) -> None:
    """Show the outcome as the flags say."""
    folder, specs = arguments.pictures, files(run.rows) if arguments.pictures or arguments.picture else {}
    every = [(name, os.path.join(folder, f"{name}.{form}")) for name in specs for form in ("svg", "png") if folder]
    save_pictures([*arguments.picture, *every], specs)
    if arguments.html:
        write_text(arguments.html, page(run))
    if not (arguments.html or specs):
        target = console(arguments, stderr=False, width=RUN_WIDTH)
        show_heading(target, run.title, str(run.scenario["caption"]), "")
        show_run(target, run, verbose=arguments.verbose)


def run_in(name: str) -> RunDocument:
    """The outcome in a file; `UsageError` if it cannot be read or is none."""
    try:
        return read(content(name), name)
    except OSError as error:
        raise UsageError(f"cannot read {name}: {reason(error)}; write an outcome with zerosim run SCENARIO --json FILE"
                         ) from error


def name_and_file(words: str) -> tuple[str, str]:
    """The argument NAME=FILE of a picture. Raises `ArgumentTypeError` for anything else.

    >>> name_and_file("step-3=stage3.svg")
    ('step-3', 'stage3.svg')
    """
    name, equals, path = words.partition("=")
    if not equals or not path.endswith((".svg", ".png")):
        raise argparse.ArgumentTypeError(f"{words!r}: write NAME=FILE, where FILE ends in .svg or .png")
    return name, path


def save_pictures(wanted: Sequence[tuple[str, str]], specs: dict[str, Spec]) -> None:
    """Write the pictures of these names to these files; `UsageError` for an unknown name."""
    for name, _ in wanted:
        if name not in specs:
            raise UsageError(f"--picture: there is no picture {name!r}; there are {', '.join(specs)}")
    for name, path in wanted:
        Picture(svg(specs[name]), name).save(path)
