"""A user's file, opened without waiting for anyone."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from zerosim.data.dataset import Fault


@contextmanager
def regular_file(folder: Path, source: str, allowed: str, fault: Fault) -> Iterator[BinaryIO]:
    """The file at path `source`, which starts in `folder`, open for reading.

    What is no regular file is refused, a pipe at once and not when somebody writes to it. Raises `fault`'s error,
    also when reading fails; `allowed` says in it what there might have been.
    """
    if "\0" in source:
        raise fault("a path has no NUL byte in it")
    try:
        with open(folder / source, "rb", opener=at_once) as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise fault(f"this is no regular file; it must be {allowed}")
            yield stream
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise fault(f"{reason}; it must be {allowed}") from None


def at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)
