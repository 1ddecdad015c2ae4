"""What a user's code raised, in a line: the error, and the line of the user's own file that it comes from."""

import inspect
import linecache
import traceback
from collections.abc import Callable
from typing import Any


def told(error: BaseException, function: Callable[..., Any]) -> str:
    """The error, with the innermost line in the file that `function` is written in."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    file = code.co_filename if code is not None else ""
    lines = [each.lineno for each in traceback.extract_tb(error.__traceback__) if each.filename == file]
    said = f"{type(error).__name__}: {' '.join(str(error).split())}"
    if not lines or lines[-1] is None:
        return said
    text = linecache.getline(file, lines[-1]).strip()
    return f"line {lines[-1]}, {text}: {said}" if text else f"line {lines[-1]}: {said}"
