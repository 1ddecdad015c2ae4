"""Opening of a user's file without blocking: a pipe without a writer is an error, not a hang."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from zerosim.data.dataset import DataFault
from zerosim.files import open_regular


@contextmanager
def regular_file(folder: Path, source: str, allowed: str, fault: DataFault) -> Iterator[BinaryIO]:
    """The file at path `source`, relative to `folder`, open for reading.

    Other than regular files are refused, a pipe without waiting for a writer. Raises `fault`'s error, also if reading
    fails; `allowed` names the possible sources in it.
    """
    if "\0" in source:
        raise fault("a path cannot contain a NUL byte")
    try:
        with open_regular(folder / source) as stream:
            yield stream
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise fault(f"{reason}; it must be {allowed}") from None
