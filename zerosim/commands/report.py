"""`zerosim report`: the tables or the page of a run from the output of `zerosim run --json`, or of two runs."""

import argparse
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console

from zerosim.commands.output import RUN_WIDTH, check_outputs, console
from zerosim.core.errors import UsageError
from zerosim.core.files import read_at_most, reason, write_text
from zerosim.show.page.page import page
from zerosim.show.page.pictures import Spec, files, svg
from zerosim.show.run_document import RunDocument, runs_of
from zerosim.show.shown import Picture
from zerosim.show.table import show_heading, show_run

MOST_BYTES = 1 << 26
"""The largest outcome; as Python objects it takes up to 30 times as much memory."""

WRITE_ONE = "write an outcome with zerosim run SCENARIO --json FILE"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the flags of `zerosim report`."""
    parser.add_argument("outcome", help="an outcome written by zerosim run --json")
    parser.add_argument("other", nargs="?", help="a second outcome, shown beside the first")
    parser.add_argument("-v", "--verbose", action="store_true", help="print more, as zerosim run -v does")
    parser.add_argument("--html", metavar="FILE", help="write the page")
    parser.add_argument("--pictures", metavar="FOLDER", help="write each picture as SVG and PNG, for slides and papers")
    parser.add_argument(
        "--picture", metavar="NAME=FILE", action="append", default=[], type=name_and_file,
        help="write one picture to an .svg or .png file: kept, sent, losses, or of the third row step-3, memory-3, "
             "partners-3; may be given several times")


def main(arguments: argparse.Namespace) -> int:
    """Write the page, the pictures, or both, or else print the tables; 0 for any result of the runs."""
    names = [arguments.outcome, *([arguments.other] if arguments.other else [])]
    pictures = {f"--picture {name}={path}": path for name, path in arguments.picture}
    pages = {} if arguments.html is None else {"--html": arguments.html}
    check_outputs(pages | pictures, dict(zip(("the outcome", "the other outcome"), names, strict=False)))
    documents = [read(name) for name in names]
    with whole(names):
        runs = runs_of(documents, names)
        single = pictured(arguments.picture, drawn(runs)) if arguments.picture else []
        if not arguments.html and not arguments.pictures and not arguments.picture:
            show(console(arguments, stderr=False, width=RUN_WIDTH), runs, verbose=arguments.verbose)
        if arguments.html:
            write_text(arguments.html, page(runs))
        if arguments.pictures:
            write_pictures(arguments.pictures, runs)
        for path, picture in single:
            picture.save(path)
    return 0


def show(target: Console, runs: Sequence[RunDocument], *, verbose: bool) -> None:
    """Print the tables of each run, as `zerosim run` did."""
    for run in runs:
        if run.is_script:
            raise UsageError("nothing to write: an outcome of zerosim torch has no tables; name a file with --html, or "
                             "a picture with --picture NAME=FILE")
        show_heading(target, ": ".join(filter(None, [run.label, run.title])), str(run.scenario["caption"]), "")
        show_run(target, run, verbose=verbose)


@contextmanager
def whole(names: Sequence[str]) -> Iterator[None]:
    """A context that turns errors of an incomplete or wrong document into one line."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UsageError(
            f"{' or '.join(names)}: not a complete outcome of zerosim run --json ({type(error).__name__}: {error})"
        ) from error


def drawn(runs: Sequence[RunDocument]) -> dict[str, Spec]:
    return files([row for run in runs for row in run.rows])


def write_pictures(folder: str, runs: Sequence[RunDocument]) -> None:
    """Write every picture of the page as SVG and PNG, in a folder that is made if missing."""
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--pictures: cannot make the folder {folder!r}: {error.strerror}") from error
    for name, spec in drawn(runs).items():
        for form in ("svg", "png"):
            Picture(svg(spec), name).save(os.path.join(folder, f"{name}.{form}"))


def refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def read(name: str) -> Any:
    """A document in JSON; `UsageError` for a file that is none."""
    try:
        content = read_at_most(name, MOST_BYTES)
        if len(content) > MOST_BYTES:
            raise UsageError(f"{name} has more than {MOST_BYTES:,} bytes, too many for an outcome")
        return json.loads(content.decode("utf-8-sig"), parse_constant=refuse_constant)
    except OSError as error:
        raise UsageError(f"cannot read {name}: {reason(error)}; {WRITE_ONE}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{name} is not JSON: found the byte {content[error.start]:#04x}; {WRITE_ONE}") from error
    except (ValueError, RecursionError) as error:
        found = error if content.strip() else "it is empty"
        raise UsageError(f"{name} is not JSON: {found}; {WRITE_ONE}") from error


def name_and_file(words: str) -> tuple[str, str]:
    """
    >>> name_and_file("step-3=stage3.svg")
    ('step-3', 'stage3.svg')
    """
    name, equals, path = words.partition("=")
    if not equals or not path.endswith((".svg", ".png")):
        raise argparse.ArgumentTypeError(f"{words!r}: write NAME=FILE, where FILE ends in .svg or .png")
    return name, path


def pictured(wanted: Sequence[tuple[str, str]], specs: dict[str, Spec]) -> list[tuple[str, Picture]]:
    """The file of each requested picture, and the picture; `UsageError` for an unknown name."""
    for name, _ in wanted:
        if name not in specs:
            raise UsageError(f"--picture: there is no picture {name!r}; there are {', '.join(specs)}")
    return [(path, Picture(svg(specs[name]), name)) for name, path in wanted]
