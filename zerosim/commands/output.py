"""The output of commands: to the terminal, to files, and one line for an error."""

import argparse
import errno
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

import msgspec
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment

from zerosim.core.errors import ScenarioError, UsageError, ZerosimError, exit_code, last_words
from zerosim.core.files import check_replaceable, reason, write_text
from zerosim.core.words import printable
from zerosim.show.shown import Shown
from zerosim.worlds.launcher import launched

LEAST_WIDTH = 40
"""The least columns, below which words would be broken; a narrower terminal breaks the lines itself."""
WIDTH = 100
"""The default columns of output to a file or a pipe."""
RUN_WIDTH = 80
"""The default columns of a run's output: launchers pipe it to terminals that may have no more."""
FLAGS = ("csv", "html", "json", "report", "svg", "toml", "trace", "weights")
"""The flags that name a file to write."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""The errors of a standard output that is a file on a full or failing disk."""


class Terminal(Console):
    """A console without automatic colours; as wide as COLUMNS, or else `width` if it is no terminal.

    A broken pipe raises `BrokenPipeError`, from which the command line derives message and exit code.
    """

    def __init__(self, *, stderr: bool, force_terminal: bool | None, width: int) -> None:
        super().__init__(stderr=stderr, force_terminal=force_terminal, highlight=False, emoji=False)
        columns = self.width if self.is_terminal or "COLUMNS" in os.environ else width
        if columns < LEAST_WIDTH or not self.is_terminal:
            self.width = max(columns, LEAST_WIDTH)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Render as rich does, without control characters in texts: a title must not move the cursor."""
        for segment in super().render(renderable, options):
            text = segment.text
            plain = segment.control is None and not (text.isprintable() or text == "\n")
            yield Segment(printable(text), segment.style) if plain else segment

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def console(arguments: argparse.Namespace, *, stderr: bool, width: int = WIDTH) -> Console:
    """A console on standard output or standard error; with `--progress live` it counts as a terminal.

    Under a launcher, standard output counts as one if standard error does: Open MPI's gives every rank a terminal.
    """
    forced = True if getattr(arguments, "progress", None) == "live" else None
    if forced is None and not stderr and launched() is not None:
        forced = Console(stderr=True).is_terminal
    return Terminal(stderr=stderr, force_terminal=forced, width=width)


def standard_output(arguments: argparse.Namespace, width: int = WIDTH) -> Console:
    """The console for tables: standard output, unless the JSON document goes there."""
    return console(arguments, stderr=arguments.json == "-", width=width)


@contextmanager
def saying(arguments: argparse.Namespace) -> Iterator[Callable[[str], None]]:
    """A function that shows the steps of a long computation on standard error: live on a terminal, else a line each."""
    target = console(arguments, stderr=True)
    if not target.is_terminal:
        yield lambda words: target.print(words, markup=False)
        return
    with target.status("") as status:
        yield lambda words: status.update(escape(words))


def check_writable(arguments: argparse.Namespace) -> None:
    """Refuse, before anything runs, output files that cannot be written: those of FLAGS and of --picture."""
    outputs = {f"--{flag}": path for flag in FLAGS if (path := getattr(arguments, flag, None)) is not None}
    outputs |= {f"--picture {name}={path}": path for name, path in getattr(arguments, "picture", ())}
    if folder := getattr(arguments, "pictures", None):
        outputs["--pictures"] = os.path.join(folder, "kept.svg")
    flags: dict[str, str] = {}
    for flag, path in outputs.items():
        if not path or (first := flags.setdefault(os.path.realpath(path), flag)) != flag:
            why = f"{first} writes {path!r} too; name another file" if path else "no file is named"
            raise UsageError(f"{flag}: {why}")
        if path == "-":
            if flag != "--json":
                raise UsageError(f"{flag}: only --json writes to standard output; name a file")
            continue
        try:
            check_replaceable(path)
        except (OSError, ValueError) as error:
            why = reason(error)
            raise UsageError(f"{flag}: cannot write {path!r}: {why}; name a file in a folder that exists") from None


def write_json(path: str, document: dict[str, Any]) -> None:
    """Write `document` to the file `path`, or to standard output for `-`."""
    text = json.dumps(document, allow_nan=False, ensure_ascii=path == "-")
    write(path, msgspec.json.format(text, indent=1) + "\n")


def write(path: str, text: str) -> None:
    """Write `text` to the file `path`, or to standard output for `-`."""
    if path == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
    else:
        write_text(path, text)


def conclude(arguments: argparse.Namespace, result: Shown) -> int:
    """Write the requested files and print a result, also if a disk is full; 0 if all of its checks held, else 1."""
    try:
        if page := getattr(arguments, "html", None) or getattr(arguments, "report", None):
            result.page().save(page)
        if picture := getattr(arguments, "svg", None):
            result.picture().save(picture)
        if arguments.json:
            write_json(arguments.json, result.document)
    except ZerosimError as error:
        if not isinstance(error, UsageError):    # a file that cannot be written
            result.show(standard_output(arguments, result.width))
        raise
    result.show(standard_output(arguments, result.width))
    return 0 if result.passed else 1


def complain(error: BaseException) -> int:
    """Print an error on standard error, usually in one line; its exit code."""
    message = last_words(error)
    if isinstance(error, OSError) and error.errno in (errno.EPIPE, *NO_ROOM):
        abandon(sys.stdout)
        message = message and f"cannot write to standard output: {error.strerror}"
    if message:
        with suppress(OSError):
            print(printable(message if isinstance(error, ScenarioError) else f"zerosim: {message}"), file=sys.stderr)
    return exit_code(error)


def open_streams() -> None:
    """Streams print a question mark for a character that their encoding lacks; closed ones become /dev/null."""
    sys.stdout, sys.stderr = (stream or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the end
                              for stream in (sys.stdout, sys.stderr))
    for stream in (sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="replace")


def abandon_full_streams() -> None:
    """Flush the output; if that fails, discard it, so that Python's own flush at exit does not fail too."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            abandon(stream)


def abandon(stream: TextIO) -> None:
    """Redirect a stream to /dev/null, because its reader has gone."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
