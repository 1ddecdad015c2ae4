"""The message about an exception that ends the run, and its exit code."""

import sys
import traceback
from contextlib import suppress

from zerosim.errors import ZerosimError

BROKE = 3
INTERRUPTED = 128 + 2
"""The exit code that a shell gives a program that SIGINT has ended."""

LESS = "smaller vectors, a smaller [model], train.micro_batch or data need less, and so do more ranks in Stage III"


def exit_code(error: BaseException) -> int:
    """
    >>> exit_code(ZeroDivisionError()), exit_code(KeyboardInterrupt())
    (3, 130)
    """
    if isinstance(error, ZerosimError):
        return error.exit_code
    return INTERRUPTED if isinstance(error, KeyboardInterrupt) else BROKE


def last_words(error: BaseException) -> str:
    """One line for expected errors, the traceback for all others; empty if the reader of the output has gone.

    >>> last_words(KeyboardInterrupt()), last_words(BrokenPipeError())
    ('interrupted', '')
    """
    match error:
        case ZerosimError():
            return str(error)
        case KeyboardInterrupt():
            return "interrupted"
        case MemoryError():
            what = f"not enough memory: {error}" if str(error) else "not enough memory"
            return f"{what}; {LESS}"
        case BrokenPipeError():
            return ""
    return "\n" + "".join(traceback.format_exception(error)).rstrip()


def last_words_of(rank: int, error: BaseException) -> str:
    """The message with the rank that prints it, as it is printed.

    >>> last_words_of(1, KeyboardInterrupt()), last_words_of(1, ZerosimError("rank 1 waits"))
    ('zerosim: rank 1: interrupted\\n', 'zerosim: rank 1 waits\\n')
    """
    said = last_words(error)
    if not said:
        return ""
    if said.startswith(f"rank {rank} "):
        return f"zerosim: {said}\n"
    separator = "" if said.startswith("\n") else " "
    return f"zerosim: rank {rank}:{separator}{said}\n"


def say(error: BaseException, rank: int) -> None:
    """Print the message of one of several ranks about `error`, after all its earlier output; ignores a closed stream.
    """
    with suppress(OSError, ValueError):
        sys.stdout.flush()
    with suppress(OSError, ValueError):
        sys.stderr.write(last_words_of(rank, error))
        sys.stderr.flush()
