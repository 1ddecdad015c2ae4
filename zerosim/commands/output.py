"""Where commands write: the terminal, a JSON document, one line for an error."""

import argparse
import json
import sys
from typing import Any

from rich.console import Console

from zerosim.errors import ScenarioError, ZerosimError

WIDTH = 100
"""Columns of what goes to a file or a pipe."""


def console(arguments: argparse.Namespace, *, stderr: bool) -> Console:
    """A console on standard output or standard error; `--progress live` takes either for a terminal."""
    forced = True if getattr(arguments, "progress", None) == "live" else None
    found = Console(stderr=stderr, force_terminal=forced)
    return found if found.is_terminal else Console(stderr=stderr, width=max(found.width, WIDTH))


def standard_output(arguments: argparse.Namespace) -> Console:
    """Where tables go: standard output, unless the JSON document goes there."""
    return console(arguments, stderr=arguments.json == "-")


def write_json(path: str, document: dict[str, Any]) -> None:
    """Write `document` to the file `path`, or to standard output where that is `-`."""
    text = json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    if path == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
    else:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)


def complain(error: ZerosimError) -> int:
    """Say what is wrong in one line on standard error; the exit code that belongs to it."""
    print(error if isinstance(error, ScenarioError) else f"zerosim: {error}", file=sys.stderr)
    return error.exit_code
