"""What is said of an exception that ends the run, and the exit code that belongs to it."""

import traceback

from zerosim.errors import ZerosimError

BROKE = 3
INTERRUPTED = 128 + 2
"""As a shell has it for a program that SIGINT has ended."""


def exit_code(error: BaseException) -> int:
    """
    >>> exit_code(ZeroDivisionError()), exit_code(KeyboardInterrupt())
    (3, 130)
    """
    if isinstance(error, ZerosimError):
        return error.exit_code
    return INTERRUPTED if isinstance(error, KeyboardInterrupt) else BROKE


def last_words(error: BaseException) -> str:
    """One line for what can happen to anyone, the traceback of all else; nothing when nobody reads any more.

    >>> last_words(KeyboardInterrupt()), last_words(BrokenPipeError())
    ('interrupted', '')
    """
    match error:
        case ZerosimError():
            return str(error)
        case KeyboardInterrupt():
            return "interrupted"
        case MemoryError():
            return f"not enough memory: {error}" if str(error) else "not enough memory"
        case BrokenPipeError():
            return ""
    return "\n" + "".join(traceback.format_exception(error)).rstrip()
