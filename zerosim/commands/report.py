"""`zerosim report`: the page of a run from what `zerosim run --json` wrote, or of two runs side by side."""

import argparse
import json
from typing import Any

from zerosim.commands.output import check_writable, write_beside
from zerosim.errors import UsageError
from zerosim.report.page.page import page
from zerosim.report.page.run import runs_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the flags of `zerosim report`."""
    parser.add_argument("outcome", help="what zerosim run --json wrote")
    parser.add_argument("other", nargs="?", help="another one, to be shown beside it")
    parser.add_argument("--html", metavar="FILE", required=True, help="write the page")


def main(arguments: argparse.Namespace) -> int:
    """Write the page; 0, whatever the runs came to."""
    check_writable(arguments)
    names = [arguments.outcome, *([arguments.other] if arguments.other else [])]
    write_beside(arguments.html, page(runs_of([read(name) for name in names], names)))
    return 0


def read(name: str) -> Any:
    """A document in JSON; `UsageError` for a file that is none."""
    try:
        with open(name, encoding="utf-8") as file:
            return json.load(file)
    except OSError as error:
        raise UsageError(f"cannot read {name}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{name} is no JSON: {error}; write an outcome with zerosim run SCENARIO --json FILE") from error
