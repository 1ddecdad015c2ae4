"""The errors of zerosim, the message about one that ends the run, and its exit code.

Each message is one line: what was found, what is allowed, how to fix it.
"""

import inspect
import linecache
import signal
import sys
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from difflib import get_close_matches
from typing import Any


class ZerosimError(Exception):
    """Any error that zerosim raises on purpose; `exit_code` is what the command line returns for it."""

    exit_code = 3


class ScenarioError(ZerosimError):
    """A scenario, its data or the command line is wrong: `file:line:column: what, and how to fix it`."""

    exit_code = 2

    def __init__(self, message: str, *, file: str, line: int = 1, column: int = 1) -> None:
        super().__init__(f"{file}:{line}:{column}: {message}")
        self.file, self.line, self.column = file, line, column


class LaunchError(ZerosimError):
    """The launcher, the MPI library, the scenario and the files that the ranks have read are inconsistent."""

    exit_code = 2


class CollectiveError(ZerosimError):
    """A collective or an exchange was called with ranks, lengths or dtypes that cannot work."""


class Unlike(CollectiveError):
    """The ranks of a lockstep world would act differently."""


class Runaway(CollectiveError):
    """A program has exceeded the number of operations that any terminating program needs."""


class Deadlock(ZerosimError):
    """No rank can proceed, or one has waited too long; the message says which rank waits for which."""


class UsageError(ZerosimError):
    """The command line names a thing that does not exist or has the wrong type."""

    exit_code = 2


class CheckpointError(ZerosimError):
    """A checkpoint is missing, incomplete, or belongs to another training."""

    exit_code = 2


class Terminated(KeyboardInterrupt):
    """SIGTERM has asked the process to end."""


def did_you_mean(name: str, names: Iterable[str], *, alike: float = 0.6) -> str:
    """A suffix for an error message that suggests the nearest of `names`; empty if none is at least `alike` similar.

    >>> did_you_mean("zero_3", ["zero2", "zero3"]), did_you_mean("mine", ["zero3"])
    ("; did you mean 'zero3'?", '')
    """
    near = get_close_matches(name, list(names), n=1, cutoff=alike)
    return f"; did you mean {near[0]!r}?" if near else ""


def error_line(error: BaseException, function: Callable[..., Any]) -> str:
    """The error in one line, with the innermost traceback line in the file of `function`."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    file = code.co_filename if code is not None else ""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    message = f"{type(error).__name__}: {' '.join(str(error).split())}"
    if not lines or lines[-1] is None:
        return message
    text = linecache.getline(file, lines[-1]).strip()
    return f"line {lines[-1]}, {text}: {message}" if text else f"line {lines[-1]}: {message}"


def exit_code(error: BaseException) -> int:
    """What the command line returns for an error: its own code, 3 for an unknown one, 128 + the signal's number.

    >>> exit_code(ZeroDivisionError()), exit_code(KeyboardInterrupt())
    (3, 130)
    """
    if isinstance(error, ZerosimError):
        return error.exit_code
    if isinstance(error, KeyboardInterrupt):    # what a shell says of a program that a signal has ended
        return 128 + (signal.SIGTERM if isinstance(error, Terminated) else signal.SIGINT)
    return ZerosimError.exit_code


def last_words(error: BaseException) -> str:
    """One line for expected errors, the traceback for all others; empty if the reader of the output has gone.

    >>> last_words(KeyboardInterrupt()), last_words(BrokenPipeError())
    ('interrupted', '')
    """
    match error:
        case ZerosimError():
            return str(error)
        case KeyboardInterrupt():
            return "ended by SIGTERM" if isinstance(error, Terminated) else "interrupted"
        case MemoryError():
            what = f"not enough memory: {error}" if str(error) else "not enough memory"
            return (f"{what}; smaller vectors, a smaller [model], train.micro_batch or data need less, and so do more "
                    "ranks in Stage III")
        case BrokenPipeError():
            return ""
    return "\n" + "".join(traceback.format_exception(error)).rstrip()


def say(error: BaseException, rank: int) -> None:
    """Print the message of one of several ranks about `error`, after its earlier output; ignores a closed stream."""
    words = last_words(error)
    separator = "" if words.startswith("\n") else " "
    whose = "" if words.startswith(f"rank {rank} ") else f" rank {rank}:"
    with suppress(OSError, ValueError):
        sys.stdout.flush()
    with suppress(OSError, ValueError):
        sys.stderr.write(f"zerosim:{whose}{separator}{words}\n" if words else "")
        sys.stderr.flush()
