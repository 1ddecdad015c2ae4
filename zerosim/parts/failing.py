"""One line about an exception in a user's code: the error, and the line of the user's file."""

import inspect
import linecache
import traceback
from collections.abc import Callable
from typing import Any


def told(error: BaseException, function: Callable[..., Any]) -> str:
    """The error, with the innermost traceback line in the file of `function`."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    file = code.co_filename if code is not None else ""
    lines = [each.lineno for each in traceback.extract_tb(error.__traceback__) if each.filename == file]
    said = f"{type(error).__name__}: {' '.join(str(error).split())}"
    if not lines or lines[-1] is None:
        return said
    text = linecache.getline(file, lines[-1]).strip()
    return f"line {lines[-1]}, {text}: {said}" if text else f"line {lines[-1]}: {said}"
