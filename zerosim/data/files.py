"""Opens a user's file without waiting: a pipe that nobody writes to is an error, not a hang."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from zerosim.data.dataset import DataFault
from zerosim.files import open_regular


@contextmanager
def regular_file(folder: Path, source: str, allowed: str, fault: DataFault) -> Iterator[BinaryIO]:
    """The file at path `source`, which starts in `folder`, open for reading.

    What is no regular file is refused, a pipe at once and not when somebody writes to it. Raises `fault`'s error,
    also when reading fails; `allowed` says in it what there might have been.
    """
    if "\0" in source:
        raise fault("a path cannot contain a NUL byte")
    try:
        with open_regular(folder / source) as stream:
            yield stream
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise fault(f"{reason}; it must be {allowed}") from None
